package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/oncemill/oncemill/internal/testserver"
)

const howToGetPrometheus = "Debian's package prometheus has it (apt-get install prometheus), and so has https://prometheus.io/download/"

var rulesFolder = filepath.Join(root, "deploy", "prometheus")

// A rule is one of rules.yaml or alerts.yaml.
type rule struct {
	Record, Alert, Expr string
	Labels, Annotations map[string]string
}

func (r rule) name() string { return r.Record + r.Alert }

func rules(t *testing.T, file string) []rule {
	t.Helper()
	var groups struct{ Groups []struct{ Rules []rule } }
	readYAML(t, filepath.Join(rulesFolder, file), &groups)
	var all []rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatalf("%s has no rules", file)
	}
	return all
}

// promtool runs Prometheus's own tool in the folder of the rules, and returns what it says.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(testserver.NeedProgram(t, "promtool", howToGetPrometheus), args...)
	cmd.Dir = rulesFolder
	said, err := cmd.CombinedOutput()
	return string(said), err
}

func TestRules_PromtoolAcceptsThem(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"check", "rules", "--lint-fatal", "rules.yaml", "alerts.yaml"},
		{"check", "config", "--lint-fatal", "prometheus.yaml"},
		append([]string{"test", "rules"}, ruleTests...),
	} {
		if said, err := promtool(t, args...); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, said)
		}
	}
}

// ruleTests are the unit tests of the rules.
var ruleTests = []string{"rules_test.yaml", "alerts_test.yaml", "alerts_day_test.yaml"}

func TestRules_AllTheirTestsAreRun(t *testing.T) {
	t.Parallel()
	found, err := filepath.Glob(filepath.Join(rulesFolder, "*_test.yaml"))
	if err != nil || len(found) != len(ruleTests) {
		t.Errorf("there are %q (%v), and %q are run", found, err, ruleTests)
	}
}

func TestAlerts_EachHasATestThatFiresItAndOneThatDoesNot(t *testing.T) {
	t.Parallel()
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, file := range ruleTests {
		var tests struct {
			Tests []struct {
				Alerts []struct {
					Name string `yaml:"alertname"`
					Want []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			}
		}
		readYAML(t, filepath.Join(rulesFolder, file), &tests)
		for _, test := range tests.Tests {
			for _, a := range test.Alerts {
				if len(a.Want) > 0 {
					fires[a.Name] = true
				} else {
					silent[a.Name] = true
				}
			}
		}
	}
	for _, r := range rules(t, "alerts.yaml") {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: a test fires it: %v; one does not: %v", r.Alert, fires[r.Alert], silent[r.Alert])
		}
	}
}

// A mistake is one that tests of alerts must notice.
type mistake struct {
	where    *regexp.Regexp // in alerts.yaml
	becomes  string
	noticeIn func(expr string) bool
	tests    []string
}

// Those of a day take longest.
var (
	allAlertTests = []string{"alerts_test.yaml", "alerts_day_test.yaml"}
	shortTests    = allAlertTests[:1]
	dayTests      = allAlertTests[1:]
)

var (
	threshold = regexp.MustCompile(`(?m) > [0-9.]+(\)|$)`)
	mistakes  = map[string]mistake{
		"every threshold is out of reach": {threshold, " > 1e12$1", func(expr string) bool {
			return threshold.MatchString(expr) && !strings.Contains(expr, " == 0")
		}, allAlertTests},
		// Where there is nothing, or nothing new, nothing is more than -1.
		"there are no thresholds": {threshold, " > -1$1", func(expr string) bool {
			return threshold.MatchString(expr) && !strings.Contains(expr, "unless") && !strings.Contains(expr, "count by")
		}, allAlertTests},
		"first events are not seen": {regexp.MustCompile(`offset \d+m`), "offset 1s", func(expr string) bool {
			return strings.Contains(expr, "unless") && strings.Contains(expr, "offset")
		}, shortTests},
		// A process that was down for long may have its first events as soon as it is back.
		"what was down begins nothing": {regexp.MustCompile(`unless \(last_over_time\(.*\) and on(.*== 0)\)`), "unless on$1", func(expr string) bool {
			return strings.Contains(expr, "up offset") && strings.Contains(expr, `="unknown"`)
		}, shortTests},
		// Summed first, a process that had events long ago hides another one's first ones.
		"first events are not those of a process": {
			regexp.MustCompile(`(sum by \([^)]*\) )\((\S+) unless (\S+) offset (\d+m) unless \(.*== 0\)\)`), "($1($2) unless $1($3 offset $4))",
			func(expr string) bool {
				return strings.Contains(expr, "unless") && strings.Contains(expr, "increase") && !strings.Contains(expr, "takeovers")
			}, shortTests,
		},
		"what could not be scraped begins anew": {regexp.MustCompile(` unless \(last_over_time.*== 0\)`), "", func(expr string) bool {
			return strings.Contains(expr, "up offset")
		}, shortTests},
		"nobody looks back for outboxes": {regexp.MustCompile(`\[6h\]`), "[1m]", func(expr string) bool {
			return strings.Contains(expr, "[6h]")
		}, shortTests},
		"a replay is a day of duplicates": {regexp.MustCompile(`quantile_over_time\(0\.1, `), "avg_over_time(", func(expr string) bool {
			return strings.Contains(expr, "quantile")
		}, dayTests},
	}
)

var quickMistakes = []string{"what could not be scraped begins anew", "a replay is a day of duplicates"}

// A test that is green whatever its alert says shows nothing: all are run with each mistake in all alerts, with
// ONCEMILL_PROOF=1. Otherwise two mistakes are enough, as Prometheus works on each for ten seconds.
func TestAlerts_TestsNoticeMistakes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(rulesFolder, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range mistakes {
		if os.Getenv("ONCEMILL_PROOF") != "1" && !slices.Contains(quickMistakes, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, name := range append([]string{"rules.yaml"}, ruleTests...) {
				copyFile(t, filepath.Join(rulesFolder, name), filepath.Join(dir, name))
			}
			if err := os.WriteFile(filepath.Join(dir, "alerts.yaml"), m.where.ReplaceAll(text, []byte(m.becomes)), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"test", "rules"}
			for _, test := range m.tests {
				args = append(args, filepath.Join(dir, test))
			}
			said, err := promtool(t, args...)
			if err == nil {
				t.Fatal("every test is green")
			}
			if strings.Contains(said, "parse error") {
				t.Fatal(said)
			}
			for _, r := range rules(t, "alerts.yaml") {
				if m.noticeIn(r.Expr) && !strings.Contains(said, "alertname: "+r.Alert+",") {
					t.Errorf("the tests of %s are green", r.Alert)
				}
			}
		})
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var recordName = regexp.MustCompile(`^[a-z_]+:[a-z_]+:[a-z0-9_]+$`) // level:metric:operations

func TestRules_AreNamedLabelledAndParsed(t *testing.T) {
	t.Parallel()
	promQL := parser.NewParser(parser.Options{})
	for _, r := range append(rules(t, "rules.yaml"), rules(t, "alerts.yaml")...) {
		if _, err := promQL.ParseExpr(r.Expr); err != nil {
			t.Errorf("%s: %v", r.name(), err)
		}
		if r.Record != "" && !recordName.MatchString(r.Record) {
			t.Errorf("%s is not level:metric:operations", r.Record)
		}
		if r.Alert == "" {
			continue
		}
		severity := r.Labels["severity"]
		if severity != "critical" && severity != "warning" && severity != "info" {
			t.Errorf("%s has the severity %q", r.Alert, severity)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Annotations["runbook_url"] == "" {
			t.Errorf("%s lacks a summary, a description or a runbook", r.Alert)
		}
	}
}
