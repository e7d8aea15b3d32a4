// Package postgrestest runs PostgreSQL servers and a PgBouncer,
// for tests. What package testserver promises holds here.
package postgrestest
