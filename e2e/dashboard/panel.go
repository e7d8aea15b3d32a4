package dashboard

import (
	"strings"
)

// Docs is where alerts are explained, and panels that need more than a line.
const Docs = "https://github.com/oncemill/oncemill/blob/main/docs/operations.md"

// Anchor is the place in a Markdown file that GitHub gives a heading.
func Anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteRune('-')
		case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z':
			b.WriteRune(r)
		}
	}
	return b.String()
}

// newPanel begins a panel. Its description has advice, or its title is a heading of the docs.
func newPanel(kind, title, unit, question string) Panel {
	p := Panel{
		Type: kind, Title: title, Description: question, Datasource: metrics,
		FieldConfig: &FieldConfig{Defaults: Field{Unit: unit}, Overrides: []Override{}},
	}
	if text, ok := advice[title]; ok {
		p.Description += " " + text
	} else {
		p.Links = []Link{{Title: "What is normal, and what to do", URL: Docs + "#" + Anchor(title), TargetBlank: true}}
	}
	return p
}

// series is a picture over time.
func series(title, unit, question string, targets ...Target) Panel {
	p := newPanel("timeseries", title, unit, question)
	p.FieldConfig.Defaults.Min = number(0)
	p.FieldConfig.Defaults.Custom = map[string]any{
		"drawStyle": "line", "fillOpacity": 10, "showPoints": "never", "lineWidth": 1,
	}
	p.Options = map[string]any{
		"legend": map[string]any{
			"displayMode": "table", "placement": "bottom", "calcs": []string{"mean", "max"}, "showLegend": true,
		},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}
	return p.asks(targets...)
}

// stacked piles the series of a picture on each other.
func (p Panel) stacked() Panel {
	p.FieldConfig.Defaults.Custom["stacking"] = map[string]any{"mode": "normal", "group": "A"}
	p.FieldConfig.Defaults.Custom["fillOpacity"] = 40
	return p
}

// coloured gives series of these names fixed colours.
func (p Panel) coloured(colours [][2]string) Panel {
	for _, c := range colours {
		p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, Override{
			Matcher:    Matcher{ID: "byName", Options: c[0]},
			Properties: []Property{{ID: "color", Value: map[string]any{"mode": "fixed", "fixedColor": c[1]}}},
		})
	}
	return p
}

// stat is one number, coloured by thresholds.
func stat(title, unit, question, expr string, steps ...Step) Panel {
	p := newPanel("stat", title, unit, question)
	p.FieldConfig.Defaults.Thresholds = &Thresholds{Mode: "absolute", Steps: append([]Step{{Color: "green"}}, steps...)}
	p.FieldConfig.Defaults.Color = map[string]any{"mode": "thresholds"}
	p.FieldConfig.Defaults.NoValue = "no data"
	p.Options = map[string]any{
		"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "textMode": "auto",
		"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
	}
	return p.asks(now(expr))
}

// bars is a bar for each series, at this moment.
func bars(title, unit, question string, target Target) Panel {
	p := newPanel("bargauge", title, unit, question)
	p.FieldConfig.Defaults.Min = number(0)
	p.FieldConfig.Defaults.Color = map[string]any{"mode": "continuous-BlYlRd"}
	p.Options = map[string]any{
		"displayMode": "basic", "orientation": "horizontal",
		"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
	}
	return p.asks(target)
}

// heatmap shows a histogram over time, with exemplars. Unit is that of the histogram's values.
func heatmap(title, unit, question, expr string) Panel {
	p := newPanel("heatmap", title, unit, question)
	p.Options = map[string]any{
		"calculate": false,
		"cellGap":   1,
		"color": map[string]any{
			"mode": "scheme", "scheme": "Spectral", "steps": 64, "exponent": 0.5, "fill": "dark-orange",
		},
		"exemplars": map[string]any{"color": "rgba(255,0,255,0.7)"},
		"legend":    map[string]any{"show": true},
		"tooltip":   map[string]any{"mode": "single", "yHistogram": true},
		"yAxis":     map[string]any{"axisPlacement": "left", "unit": unit},
	}
	t := over("{{le}}", expr).exemplified()
	t.Format = "heatmap"
	return p.asks(t)
}

// asks gives the panel its queries, and them their letters.
func (p Panel) asks(targets ...Target) Panel {
	for i, t := range targets {
		t.RefID = string(rune('A' + i))
		if t.Datasource == nil {
			t.Datasource = metrics
		}
		p.Targets = append(p.Targets, t)
	}
	p.Interval = "5s"
	return p
}

// over is a query over time.
func over(legend, expr string) Target {
	return Target{Expr: strings.TrimSpace(expr), LegendFormat: legend, Range: true}
}

// exemplified asks for exemplars too: the dots that lead to traces.
func (t Target) exemplified() Target {
	t.Exemplar = true
	return t
}

// now is a query about this moment.
func now(expr string) Target { return Target{Expr: strings.TrimSpace(expr), Instant: true} }

func above(value float64, colour string) Step { return Step{Color: colour, Value: &value} }

func number(f float64) *float64 { return &f }
