// Package redistest runs real Redis servers, clusters, Sentinels and a Valkey, and puts a proxy before them that loses and delays,
// for tests. What package testserver promises holds here.
package redistest
