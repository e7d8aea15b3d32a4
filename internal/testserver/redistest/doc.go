// Package redistest runs real Redis servers, clusters, Sentinels and a Valkey, and puts a proxy before them that loses
// and delays, for tests. The promises of package testserver hold here.
package redistest
