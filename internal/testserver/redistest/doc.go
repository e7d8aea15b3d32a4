// Package redistest runs real Redis servers, clusters, Sentinels and a Valkey for tests, behind a proxy that loses and
// delays. It keeps the promises of package testserver.
package redistest
