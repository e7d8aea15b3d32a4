// Package dashboard describes Oncemill's Grafana dashboards in Go, and writes them as the JSON that stands in
// deploy/grafana/dashboards. Nobody edits that JSON by hand:
//
//	go -C e2e test ./dashboard -update
//
// writes it anew, and a test fails where the two differ. Each panel answers one question, which is its title's
// description. docs/operations.md, to which the panel links, says what is normal and what to do otherwise.
//
// The JSON is Grafana's classic model, which every Grafana since version 9 loads and newer ones convert.
package dashboard
