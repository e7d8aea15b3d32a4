// Package e2e tests what stands around the library. Dashboards, rules and alerts run on a real Prometheus. Traces go to
// an OTLP receiver and, if one is named, a real Jaeger. It also checks compose.yaml and the links of the docs.
//
// It is a module of its own, so that nobody who uses the library gets its dependencies.
package e2e
