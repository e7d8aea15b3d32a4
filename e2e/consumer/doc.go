// Package consumer tests a Processor with OpenTelemetry's SDK, Redis and NATS.
package consumer
