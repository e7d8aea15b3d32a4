package e2e_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/oncemill/oncemill/e2e/dashboard"
)

// Everything that a program with Oncemill measures goes through its /metrics and a real Prometheus to the queries of the
// dashboards, the rules and the alerts.
func TestPrometheus_EveryQueryHasDataAndExemplarsLeadToDuplicates(t *testing.T) {
	prometheus := startPrometheus(t, serveMetrics(t))
	s := newShop(t)
	ctx, stop := context.WithCancel(t.Context())
	var playing sync.WaitGroup
	defer playing.Wait()
	defer stop()
	playing.Go(func() {
		for ctx.Err() == nil {
			s.play()
		}
	})
	queries := allQueries(t)
	missing := map[string]string{}
	end := time.Now().Add(3 * time.Minute)
	for {
		for name, query := range queries {
			if problem := prometheus.problem(query); problem != "" {
				missing[name] = problem + "\n\t" + query
			} else {
				delete(missing, name)
				delete(queries, name)
			}
		}
		if len(queries) == 0 || time.Now().After(end) {
			break
		}
		<-time.After(500 * time.Millisecond)
	}
	for name, problem := range missing {
		t.Errorf("%s: %s", name, problem)
	}
	prometheus.checkExemplars()
}

// problem says why a query shows nothing, or "".
func (p *promServer) problem(query string) string {
	values, err := p.values(query)
	if err != nil {
		return err.Error()
	}
	if !slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) && v != 0 }) {
		return fmt.Sprintf("there is nothing but %v", values)
	}
	return ""
}

// mayBeZero are queries of what is nothing, or over at once, where all is well.
var mayBeZero = []string{
	"Handlers running", "Age of the oldest row", "Oldest pending row", "Rows pending", // seldom so slow that it is seen
	"Late duplicates", // nothing is 12 hours old here
	"Waits for a connection that timed out",
	"oncemill_outbox_pending:max", "oncemill_outbox_oldest_age", "share_over_12h",
	"OncemillWindowTooShort", "OncemillHandlerStandsStill", "OncemillOutboxStalled", "OncemillDuplicateRatioVanished",
}

// allQueries are those of the panels, by dashboard and title, the recording rules by name, and everything that an alert looks at.
func allQueries(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	add := func(name, query string) {
		if slices.ContainsFunc(mayBeZero, func(s string) bool { return strings.Contains(name, s) }) {
			query = "count(" + query + ")"
		}
		if all[name] != "" {
			t.Fatalf("two queries are called %s", name)
		}
		all[name] = query
	}
	for _, q := range dashboard.PanelQueries() {
		add(fmt.Sprintf("%s: %s: %s", q.File, q.Panel, q.Target.RefID), q.Expanded("30s", "1m"))
	}
	for _, r := range rules(t, "rules.yaml") {
		add(r.Record, r.Record)
	}
	promQL := parser.NewParser(parser.Options{})
	for _, r := range rules(t, "alerts.yaml") {
		expr, err := promQL.ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		for i, selector := range selectors(expr) {
			if strings.HasPrefix(selector, "kafka_") || strings.HasPrefix(selector, "jetstream_") {
				continue // brokers' exporters tell them
			}
			if strings.Contains(selector, `"_OTHER"`) {
				continue // that takes a thousand destinations
			}
			add(fmt.Sprintf("%s, selector %d", r.Alert, i), "count("+selector+")")
		}
	}
	return all
}

// selectors are the series that an expression looks at, now: without offsets.
func selectors(expr parser.Node) (found []string) {
	if s, ok := expr.(*parser.VectorSelector); ok {
		s.OriginalOffset, s.Offset = 0, 0
		return []string{s.String()}
	}
	for child := range parser.ChildrenIter(expr) {
		found = append(found, selectors(child)...)
	}
	return found
}

// checkExemplars follows the dots of the panels on duplicates to their traces.
func (p *promServer) checkExemplars() {
	p.t.Helper()
	for _, q := range dashboard.PanelQueries() {
		if q.File != "duplicates.json" || !q.Target.Exemplar {
			continue
		}
		found := 0
		for _, e := range p.exemplars(q.Expanded("30s", "1m")) {
			outcome := e.Series["oncemill_outcome"]
			if !strings.HasPrefix(outcome, "duplicate_") || outcome == "duplicate_in_progress" {
				continue // one in progress waits, and its span says what became of it
			}
			trace := processed.ofTrace(e.Labels["trace_id"])
			if !slices.Contains(trace, outcome) {
				p.t.Errorf("%s: the exemplar of %s leads to the trace %q, in which deliveries were %v", q.Panel, outcome, e.Labels["trace_id"], trace)
			}
			found++
		}
		p.t.Logf("%s: %d exemplars lead to the traces of duplicates", q.Panel, found)
		if found == 0 {
			p.t.Errorf("%s has no exemplar of a duplicate", q.Panel)
		}
	}
}
