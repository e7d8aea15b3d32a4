// Package e2e tests what stands around the library: dashboards, rules and alerts against a real Prometheus, traces
// against an OTLP receiver and, if one is named, a real Jaeger, compose.yaml, and the links of the docs.
//
// It is a module of its own, so that nobody who uses the library gets its dependencies.
package e2e
