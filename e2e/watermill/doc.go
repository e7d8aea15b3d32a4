// Package watermill tests a Router of Watermill over the sources of Kafka and NATS, with Watermill's own suite, too.
package watermill
