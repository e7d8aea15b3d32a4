// Package natstest runs NATS servers with JetStream for tests, embedded or as a cluster of processes. It keeps the
// promises of package testserver.
package natstest
