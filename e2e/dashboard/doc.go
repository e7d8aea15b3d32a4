// Package dashboard describes Oncemill's Grafana dashboards in Go, and writes them as the JSON in
// deploy/grafana/dashboards. Do not edit that JSON by hand. This writes it anew, and a test fails where the two differ:
//
//	go -C e2e test ./dashboard -update
//
// Each panel answers one question, its title's description, which also says what is normal and what to do otherwise. If
// that takes more than a line, the panel links to docs/operations.md.
//
// The JSON is Grafana's classic model, which every Grafana since version 9 loads and newer ones convert.
package dashboard
