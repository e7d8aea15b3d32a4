package dashboard

// Each outcome has its colour on every dashboard: green ran, blue and grey did not have to, yellow waits, red is wrong.
var outcomeColours = [][2]string{
	{"claimed", "green"},
	{"reclaimed", "dark-green"},
	{"publish_only", "super-light-green"},
	{"duplicate_completed", "blue"},
	{"duplicate_failed", "purple"},
	{"duplicate_unknown", "dark-purple"},
	{"duplicate_in_progress", "light-yellow"},
	{"not_due", "yellow"},
	{"fingerprint_mismatch", "orange"},
	{"rejected", "dark-orange"},
	{"store_error", "red"},
	{"bypassed", "dark-red"},
}

func groupChoices(values string) []Variable {
	return []Variable{
		choice("job", "Service", "label_values("+values+", job)"),
		choice("group", "Consumer group", "label_values("+values+`{job=~"$job"}, `+group+")"),
		choice("destination", "Destination", "label_values("+values+`{job=~"$job"}, `+destination+")"),
	}
}

// ratio is the share of duplicates, for each value of the labels that has deliveries.
func ratio(labels string) string {
	if labels == "" {
		return per(orZero(sum(rate(claims, ofGroup, duplicate))), sum(rate(claims, ofGroup, answered)))
	}
	return per(sumBy(labels, rate(claims, ofGroup, duplicate)), sumBy(labels, rate(claims, ofGroup, answered)))
}

func duplicates() Dashboard {
	variables := append(sources(true), groupChoices(claims)...)
	variables = append(variables, Variable{
		Name: "window", Label: "Dedup window (s)", Type: "textbox", Query: "86400",
		Current: Current{Text: "86400", Value: "86400"},
	})
	return page("oncemill-duplicates", "Oncemill / Duplicates",
		"How many messages come more than once, from where, why and how late.", variables,
		row{"Now", 4, []Panel{
			stat("Duplicate ratio", "percentunit", "Which share of the deliveries that were answered were duplicates?",
				ratio(""), above(0.01, "yellow"), above(0.1, "red")),
			stat("Duplicates suppressed", "short",
				"How many deliveries were answered with a stored outcome, in the time that is shown?",
				orZero(sum(within(claims, ofGroup, duplicate)))),
			stat("Handler time saved", "s",
				"How long would handlers have worked on those duplicates, at their mean time?",
				sum(per(sumBy("job, "+group, grown(claims, ofGroup, duplicate))+
					" * "+sumBy("job, "+group, grown(handlerTime+"_sum", ofGroup)),
					sumBy("job, "+group, grown(handlerTime+"_count", ofGroup))))),
			stat("Unguarded runs", "short",
				"How many handlers ran without a claim, because the policy lets them (no ID, or fail open)?",
				orZero(sum(within(claims, ofGroup, outcome+`="bypassed"`))), above(1, "red")),
		}},
		row{"How many", 9, []Panel{
			series("Deliveries by outcome", "ops",
				"How are deliveries answered? One that was held counts as in progress or not due, too.",
				over("{{"+outcome+"}}", sumBy(outcome, rate(claims, ofGroup)))).stacked().coloured(outcomeColours),
			series("Duplicate ratio by consumer group", "percentunit",
				"Whose share of duplicates changes? The dots are exemplars: each leads to a trace.",
				over("{{"+group+"}}", ratio(group)).exemplified()),
		}},
		row{"Why and where", 9, []Panel{
			series("Duplicates by cause", "ops",
				"Who sends duplicates? The dots are duplicates: each leads to its trace, "+
					"and its span links to the run that did the work.",
				over("{{"+cause+"}}", sumBy(cause, rate(claims, ofGroup, duplicate))).exemplified()).stacked(),
			bars("Destinations with most duplicates", "ops", "On which ten destinations do most duplicates arrive?",
				Target{
					Expr:         "topk(10, " + sumBy(destination, rate(claims, ofGroup, duplicate)) + ")",
					LegendFormat: "{{" + destination + "}}", Instant: true,
				}),
		}},
		row{"How late", 9, []Panel{
			heatmap("Duplicate delay", "s",
				"How long after the first claim do duplicates arrive? "+
					"The dedup window must be longer than all of them.",
				sumBy("le", "increase("+delay+"_bucket{"+ofGroup+","+duplicate+"}[$__rate_interval])")),
			series("Duplicate delay and the window", "s",
				"How close do the latest duplicates come to the window? "+
					"Set the window at the top to the one of your policy.",
				over("half of them", delayQuantile(0.5)),
				over("99 %", delayQuantile(0.99)),
				over("99.9 %", delayQuantile(0.999)),
				over("window", "vector($window)"),
			),
		}},
		row{"Who", 9, []Panel{groupTable()}},
		row{"Which", 10, []Panel{recentDuplicates()}},
	)
}

// delayQuantile looks at an hour: duplicates are few.
func delayQuantile(q float64) string {
	return quantileOver(q, delay, "1h", ofGroup, duplicate)
}

// groupTable has a line for each consumer group.
func groupTable() Panel {
	p := newPanel("table", "Consumer groups", "ops", "Which group has a problem? A click opens its dashboard.")
	columns := []struct{ name, unit, expr string }{
		{"Deliveries", "ops", sumBy("job, "+group, rate(claims, ofGroup, answered))},
		{"Duplicates", "percentunit", ratio("job, " + group)},
		{"Handler p99", "s", quantile(0.99, "job, "+group, handlerTime, ofGroup)},
		{"Handler errors", "ops", sumBy("job, "+group, rate(handlerTime+"_count", ofGroup, `error_type!=""`))},
		{"In progress elsewhere", "ops",
			sumBy("job, "+group, rate(claims, ofGroup, outcome+`="duplicate_in_progress"`))},
	}
	names := map[string]any{"job": "Service", group: "Group"}
	for i, c := range columns {
		t := now(c.expr)
		t.Format = "table"
		p = p.asks(t)
		letter := string(rune('A' + i))
		p.Targets[i].RefID = letter
		names["Value #"+letter] = c.name
		p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, Override{
			Matcher: Matcher{ID: "byName", Options: c.name}, Properties: []Property{{ID: "unit", Value: c.unit}},
		})
	}
	p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, Override{
		Matcher: Matcher{ID: "byName", Options: "Group"},
		Properties: []Property{{ID: "links", Value: []Link{{
			Title: "This group",
			URL:   "/d/oncemill-group?var-job=${__data.fields.Service}&var-group=${__value.raw}&${__url_time_range}",
		}}}},
	})
	p.Options = map[string]any{"showHeader": true, "cellHeight": "sm"}
	p.Transformations = []Transformation{
		{ID: "merge", Options: map[string]any{}},
		{ID: "organize", Options: map[string]any{ //nolint:misspell // Grafana's name
			"excludeByName": map[string]any{"Time": true}, "renameByName": names,
		}},
	}
	return p
}

// recentDuplicates asks the trace store.
func recentDuplicates() Panel {
	p := newPanel("table", "Recent duplicates", "short",
		"Which messages came again? A click opens the trace; "+
			"the link of its process span leads to the run that did the work.")
	p.Datasource = traces
	p.Options = map[string]any{"showHeader": true, "cellHeight": "sm"}
	return p.asks(Target{
		Datasource: traces, QueryType: "traceql", TableType: "spans", Limit: 50,
		Query: `{ span.oncemill.outcome =~ "duplicate_(completed|failed|unknown)" } | ` +
			`select(span.messaging.message.id, span.messaging.consumer.group.name, ` +
			`span.oncemill.duplicate.cause, span.oncemill.original.age)`,
	})
}
