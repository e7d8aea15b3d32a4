package e2e_test

import (
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/oncemill/oncemill/e2e/dashboard"
)

// A sample is what promtool expects of a query.
type sample struct {
	Labels string  `yaml:"labels"`
	Value  float64 `yaml:"value"`
}

// An asked panel is the first query of a panel, and what it must show of some series after 40 minutes.
type asked struct {
	name, file, panel string
	series            map[string]string
	want              []sample
}

const (
	chargeOf   = `job="billing",messaging_consumer_group_name="charge",messaging_destination_name="orders",oncemill_outcome=`
	claimsOf   = `oncemill_claims_total{` + chargeOf
	failuresOf = `oncemill_failures_total{job="billing",messaging_consumer_group_name="charge",messaging_destination_name="orders",oncemill_result=`
	timesOf    = `oncemill_claim_duration_seconds_count{job="billing",oncemill_store="redis",oncemill_outcome=`
	boxOf      = `",oncemill_outbox_table="oncemill_outbox"`
)

// What is rare, or has not happened yet, is where a query goes wrong.
var askedPanels = []asked{
	{"the first events of a counter are counted", "duplicates.json", "Unguarded runs",
		map[string]string{claimsOf + `"bypassed",instance="a"}`: "3x60", claimsOf + `"bypassed",instance="b"}`: "_x30 500x30"}, []sample{{"{}", 500}}},
	{"the first events of a counter are counted", "duplicates.json", "Duplicates suppressed",
		map[string]string{claimsOf + `"duplicate_completed"}`: "_x38 7x20"}, []sample{{"{}", 7}}},
	{"the first event ever, and a process that began again", "store.json", "Fail open active",
		map[string]string{
			claimsOf + `"bypassed",oncemill_bypass_reason="store_down",instance="a"}`: "_x40 1x20",
			claimsOf + `"bypassed",oncemill_bypass_reason="store_down",instance="b"}`: "_x20 0+10x10 0x30",
		}, []sample{{"{}", 101}}},
	{"the first failures of a process are counted", "consumer-group.json", "Messages failed",
		map[string]string{failuresOf + `"unknown",instance="a"}`: "3x60", failuresOf + `"unknown",instance="b"}`: "_x38 2x20", failuresOf + `"permanent"}`: "9x60"},
		[]sample{{`{oncemill_result="permanent"}`, 0}, {`{oncemill_result="unknown"}`, 2}}},
	{"the first of them", "consumer-group.json", "Other content under a known ID",
		map[string]string{claimsOf + `"fingerprint_mismatch"}`: "_x38 1x20"}, []sample{{`{messaging_destination_name="orders"}`, 1}}},
	{"the first of them", "consumer-group.json", "Rejected or unguarded",
		map[string]string{claimsOf + `"rejected"}`: "_x38 1x20"}, []sample{{`{oncemill_outcome="rejected"}`, 1}}},
	{"the first of them", "consumer-group.json", "Leases lost",
		map[string]string{`oncemill_lease_losses_total{job="billing",messaging_consumer_group_name="charge"}`: "_x38 1x20"},
		[]sample{{`{messaging_consumer_group_name="charge"}`, 1}}},
	{"the first of them", "consumer-group.json", "Takeovers",
		map[string]string{`oncemill_lease_takeovers_total{job="billing",messaging_consumer_group_name="charge",messaging_destination_name="orders"}`: "_x38 2x20"},
		[]sample{{`{messaging_consumer_group_name="charge"}`, 2}}},
	{"the first of them", "outbox.json", "Copies that the broker recognised",
		map[string]string{`oncemill_broker_duplicates_total{job="billing",oncemill_result="unexpected"}`: "_x38 1x20"},
		[]sample{{`{oncemill_result="unexpected"}`, 1}}},
	{"the first of them", "outbox.json", "Rows that died",
		map[string]string{`oncemill_outbox_deaths_total{job="a` + boxOf + `,messaging_destination_name="orders"}`: "_x38 1x20"},
		[]sample{{`{messaging_destination_name="orders"}`, 1}}},
	{"nothing happened", "duplicates.json", "Unguarded runs", map[string]string{claimsOf + `"bypassed"}`: "9x60"}, []sample{{"{}", 0}}},
	{"nothing is no share of nothing", "duplicates.json", "Duplicate ratio", map[string]string{claimsOf + `"claimed"}`: "9x60"}, nil},
	{"what got no answer is no first delivery", "duplicates.json", "Duplicate ratio",
		map[string]string{
			claimsOf + `"claimed"}`: "0+10x60", claimsOf + `"duplicate_completed"}`: "0+10x60", claimsOf + `"store_error"}`: "0+80x60",
		}, []sample{{"{}", 0.5}}},
	{"nothing is no share of nothing", "store.json", "Claims that failed", map[string]string{timesOf + `"claimed"}`: "9x60"}, nil},
	{"nothing is no share of nothing", "consumer-group.json", "Late duplicates",
		map[string]string{`oncemill_duplicate_delay_seconds_bucket{` + chargeOf + `"duplicate_completed",le="+Inf"}`: "9x60",
			`oncemill_duplicate_delay_seconds_bucket{` + chargeOf + `"duplicate_completed",le="43200"}`: "9x60"}, nil},
	{"nothing is no mean", "outbox.json", "Batch size",
		map[string]string{`oncemill_outbox_relay_batch_size_sum{job="a` + boxOf + `}`: "9x60", `oncemill_outbox_relay_batch_size_count{job="a` + boxOf + `}`: "9x60"}, nil},
	{"a process that could not be scraped has not begun again", "consumer-group.json", "Messages failed",
		map[string]string{failuresOf + `"unknown",instance="a"}`: "9x33 stale _x2 9x30", `up{job="billing",instance="a"}`: "1x33 0x2 1x30"},
		[]sample{{`{oncemill_result="unknown"}`, 0}}},
	{"the first of them", "store.json", "Outputs too large to be kept",
		map[string]string{`oncemill_outputs_oversize_total{job="billing",messaging_consumer_group_name="charge"}`: "_x38 1x20"},
		[]sample{{`{messaging_consumer_group_name="charge"}`, 1}}},
	{"two services have tables of one name", "outbox.json", "Rows by state",
		map[string]string{`oncemill_outbox_pending{job="a` + boxOf + `,oncemill_outbox_state="pending"}`: "5x60", `oncemill_outbox_pending{job="b` + boxOf + `,oncemill_outbox_state="pending"}`: "3x60"},
		[]sample{{`{job="a` + boxOf + `,oncemill_outbox_state="pending"}`, 5}, {`{job="b` + boxOf + `,oncemill_outbox_state="pending"}`, 3}}},
	{"two services have tables of one name", "outbox.json", "Age of the oldest row",
		map[string]string{`oncemill_outbox_oldest_age_seconds{job="a` + boxOf + `}`: "5x60", `oncemill_outbox_oldest_age_seconds{job="b` + boxOf + `}`: "3x60"},
		[]sample{{`{job="a` + boxOf + `}`, 5}, {`{job="b` + boxOf + `}`, 3}}},
}

// Prometheus's own tool evaluates the queries.
func TestPanels_ShowTheFirstEventsAndNoShareOfNothing(t *testing.T) {
	t.Parallel()
	type series struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	type question struct {
		Expr string   `yaml:"expr"`
		At   string   `yaml:"eval_time"`
		Want []sample `yaml:"exp_samples"`
	}
	type unit struct {
		Name      string     `yaml:"name"`
		Interval  string     `yaml:"interval"`
		Input     []series   `yaml:"input_series"`
		Questions []question `yaml:"promql_expr_test"`
	}
	var units []unit
	for _, a := range askedPanels {
		u := unit{Name: a.panel + ": " + a.name, Interval: "1m", Questions: []question{{queryOf(t, a.file, a.panel), "40m", a.want}}}
		for name, values := range a.series {
			u.Input = append(u.Input, series{name, values})
		}
		units = append(units, u)
	}
	text, err := yaml.Marshal(map[string]any{"evaluation_interval": "1m", "tests": units})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := promtool(t, "test", "rules", path); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// queryOf is the first query of a panel, of half an hour.
func queryOf(t *testing.T, file, panel string) string {
	t.Helper()
	for _, q := range dashboard.PanelQueries() {
		if q.File == file && q.Panel == panel {
			return q.Expanded("5m", "30m")
		}
	}
	t.Fatalf("%s has no panel %s", file, panel)
	return ""
}
