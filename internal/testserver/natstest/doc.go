// Package natstest runs NATS servers with JetStream, embedded or as a cluster of processes, for tests. The promises of
// package testserver hold here.
package natstest
