package dashboard_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/oncemill/oncemill/e2e/dashboard"
)

var update = flag.Bool("update", false, "write the dashboards to deploy/grafana/dashboards")

var folder = filepath.Join("..", "..", "deploy", "grafana", "dashboards")

func TestDashboards_CommittedJSONIsWhatTheGeneratorWrites(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, name := range dashboard.Files() {
		known[name] = true
		want, err := dashboard.All()[name].JSON()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, name)
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what this package describes (%v): go -C e2e test ./dashboard -update", path, err)
		}
	}
	found, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		if !known[filepath.Base(path)] {
			t.Errorf("%s is described nowhere", path)
		}
	}
}

func TestDashboards_PanelsAreExplainedHaveUnitsAndRoom(t *testing.T) {
	t.Parallel()
	for name, d := range dashboard.All() {
		if d.ID != nil || !strings.HasPrefix(d.UID, "oncemill-") || len(d.UID) > 40 {
			t.Errorf("%s: id %v, uid %q: another Grafana would not take it, or replace something", name, d.ID, d.UID)
		}
		ids := map[int]bool{}
		for i, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have the number %d", name, p.ID)
			}
			ids[p.ID] = true
			if p.Type == "row" {
				continue
			}
			if p.Description == "" || p.FieldConfig == nil || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
				t.Errorf("%s: %s lacks a description, a unit or a query", name, p.Title)
			}
			if advice := strings.Contains(p.Description, "? "); !advice && len(p.Links) == 0 {
				t.Errorf("%s: %s says neither what is normal nor where to read it", name, p.Title)
			}
			for _, other := range d.Panels[:i] {
				if overlap(p.GridPos, other.GridPos) {
					t.Errorf("%s: %s lies on %s", name, p.Title, other.Title)
				}
			}
			for _, target := range p.Targets {
				if target.Datasource == nil || !strings.HasPrefix(target.Datasource.UID, "${") {
					t.Errorf("%s: %s asks a data source that only one Grafana has", name, p.Title)
				}
			}
		}
	}
}

func overlap(a, b dashboard.Grid) bool {
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

// Series carry labels of their instrumentation scope and instance, so that a query without an aggregation would show
// one line for each process.
func TestDashboards_QueriesAreValidAndAggregate(t *testing.T) {
	t.Parallel()
	promQL := parser.NewParser(parser.Options{})
	for _, q := range dashboard.PanelQueries() {
		expr, err := promQL.ParseExpr(q.Expanded("1m", "30m"))
		if err != nil {
			t.Errorf("%s: %s: %v\n%s", q.File, q.Panel, err, q.Target.Expr)
			continue
		}
		if problem := bare(expr); problem != "" {
			t.Errorf("%s: %s: %s is not aggregated", q.File, q.Panel, problem)
		}
		if strings.Contains(q.Expanded("1m", "30m"), "$") {
			t.Errorf("%s: %s: a variable is left in %s", q.File, q.Panel, q.Expanded("1m", "30m"))
		}
		used := map[string]bool{}
		for _, v := range dashboard.All()[q.File].Templating.List {
			used[v.Name] = true
		}
		for _, name := range []string{"job", "group", "destination", "table", "store", "window"} {
			if strings.Contains(q.Target.Expr, "$"+name) && !used[name] {
				t.Errorf("%s: %s uses $%s, which the dashboard does not have", q.File, q.Panel, name)
			}
		}
	}
}

// bare returns a selector that no aggregation stands around, or "".
func bare(expr parser.Node) string {
	switch e := expr.(type) {
	case *parser.AggregateExpr:
		return ""
	case *parser.VectorSelector:
		return e.String()
	}
	for child := range parser.ChildrenIter(expr) {
		if found := bare(child); found != "" {
			return found
		}
	}
	return ""
}

func TestBare_FindsWhatIsNotAggregated(t *testing.T) {
	t.Parallel()
	promQL := parser.NewParser(parser.Options{})
	for query, want := range map[string]bool{
		"rate(x[5m])": true, "sum(rate(x[5m])) / rate(y[5m])": true, "x": true,
		"sum by (a) (rate(x[5m]))": false, "vector(1)": false, "sum(x) or vector(0)": false,
		"histogram_quantile(0.9, sum by (le) (rate(x[5m])))": false,
	} {
		expr, err := promQL.ParseExpr(query)
		if err != nil {
			t.Fatal(err)
		}
		if got := bare(expr) != ""; got != want {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
}
