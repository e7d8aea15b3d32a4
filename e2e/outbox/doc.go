// Package outbox tests the metrics of an outbox's relay, with OpenTelemetry's SDK, and what a message costs in MySQL.
package outbox
