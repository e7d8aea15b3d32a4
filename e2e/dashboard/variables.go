package dashboard

// The data sources are variables, so that a dashboard works wherever it is imported. Their first values are the names
// that grafana/otel-lgtm gives its own.
var (
	metrics = &Datasource{Type: "prometheus", UID: "${datasource}"}
	traces  = &Datasource{Type: "tempo", UID: "${traces}"}
)

func sources(withTraces bool) []Variable {
	all := []Variable{{
		Name: "datasource", Label: "Metrics", Type: "datasource", Query: "prometheus", Refresh: 1,
		Current: Current{Text: "Prometheus", Value: "prometheus"},
	}}
	if withTraces {
		all = append(all, Variable{
			Name: "traces", Label: "Traces", Type: "datasource", Query: "tempo", Refresh: 1,
			Current: Current{Text: "Tempo", Value: "tempo"},
		})
	}
	return all
}

// choice is a variable with the values of a metric's label.
func choice(name, label, values string) Variable {
	return Variable{
		Name: name, Label: label, Type: "query", Datasource: metrics,
		Query:   Query{Query: values, RefID: name},
		Refresh: 2, Sort: 1, Multi: true, IncludeAll: true, AllValue: ".*",
		Current: Current{Text: []string{"All"}, Value: []string{"$__all"}},
	}
}
