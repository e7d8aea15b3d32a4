// Package postgrestest runs PostgreSQL servers and a PgBouncer for tests. It keeps the promises of package testserver.
package postgrestest
