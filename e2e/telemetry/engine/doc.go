// Package engine tests what a guard counts, with OpenTelemetry's SDK.
package engine
