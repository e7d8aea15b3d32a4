// Package outbox tests what an outbox's relay counts, with OpenTelemetry's SDK.
package outbox
