// Package kafkatest runs Kafka brokers for tests, from their own jars, which Maven fetches once. It keeps the promises
// of package testserver.
package kafkatest
