// Package postgrestest runs PostgreSQL servers and a PgBouncer, for tests. The promises of package testserver hold
// here.
package postgrestest
