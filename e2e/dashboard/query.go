package dashboard

import "strings"

// A PanelQuery is one PromQL query of a panel.
type PanelQuery struct {
	File, Panel string
	Target      Target
}

// PanelQueries are all PromQL queries of all dashboards, in the order of the pages.
func PanelQueries() []PanelQuery {
	var all []PanelQuery
	for _, file := range Files() {
		for _, p := range All()[file].Panels {
			for _, t := range p.Targets {
				if t.Expr != "" {
					all = append(all, PanelQuery{File: file, Panel: p.Title, Target: t})
				}
			}
		}
	}
	return all
}

// Expanded is the query as Grafana sends it when every variable is All, the panel's rate interval is the given one and it
// shows the given time.
func (q PanelQuery) Expanded(rateInterval, shown string) string {
	return strings.NewReplacer(
		"$__rate_interval", rateInterval,
		"$__range", shown,
		"$job", ".*", "$group", ".*", "$destination", ".*", "$table", ".*", "$store", ".*",
		"$window", "86400",
	).Replace(q.Target.Expr)
}
