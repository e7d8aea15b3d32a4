// Package engine tests a guard with OpenTelemetry's SDK, real stores and databases.
package engine
