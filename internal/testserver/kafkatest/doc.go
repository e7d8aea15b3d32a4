// Package kafkatest runs Kafka brokers from their own jars, which Maven fetches once, for tests. The promises of
// package testserver hold here.
package kafkatest
