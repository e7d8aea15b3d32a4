// Package outbox tests the metrics of an outbox's relay, with OpenTelemetry's SDK.
package outbox
