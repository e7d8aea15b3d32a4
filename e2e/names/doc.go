// Package names tests every span, attribute and metric of package internal/telemetry with OpenTelemetry's SDK.
package names
