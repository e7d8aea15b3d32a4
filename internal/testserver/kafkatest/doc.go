// Package kafkatest runs Kafka brokers from their own jars, which Maven fetches once,
// for tests. What package testserver promises holds here.
package kafkatest
