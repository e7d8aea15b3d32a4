// Package natstest runs NATS servers with JetStream, embedded or as a cluster of processes,
// for tests. What package testserver promises holds here.
package natstest
