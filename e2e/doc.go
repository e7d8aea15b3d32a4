// Package e2e tests what stands around the library. It checks dashboards, rules and alerts against a real Prometheus,
// and traces against an OTLP receiver and, if one is named, a real Jaeger. It also checks compose.yaml and the links of
// the docs.
//
// It is a module of its own, so users of the library do not get its dependencies.
package e2e
