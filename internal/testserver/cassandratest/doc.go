// Package cassandratest runs Cassandra nodes for tests, from their own jars, which Maven fetches once, behind a proxy
// that loses and delays. It keeps the promises of package testserver.
package cassandratest
