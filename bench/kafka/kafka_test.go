package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

func TestMain(m *testing.M) {
	kit.ServeIfAsked()
	os.Exit(m.Run())
}

// Results are what a run must end with, in this order.
var results = []string{
	"ratio kafka_worker_vs_raw",
	"ratio kafka_worker_per_key_vs_raw",
	"ratio kafka_worker_batches_vs_raw",
}

func TestProgram_QuickRunGivesEveryResult(t *testing.T) {
	for _, program := range []string{"redis-server", "java"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	var stdout, stderr bytes.Buffer
	if err := kit.Run(t.Context(), []string{"-quick"}, &stdout, &stderr, experiments...); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	last := lines[max(0, len(lines)-len(results)):]
	for i, line := range last {
		if !strings.HasPrefix(line, results[i]+" ") {
			t.Errorf("line %d from the end is %q, want %q and a number", len(last)-i, line, results[i])
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", stdout.String(), stderr.String())
	}
}

func TestMeter_ARecordThatIsLostOrComesTwiceIsAnError(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		handled int
		wrong   bool
	}{{9, true}, {10, false}, {11, true}} {
		m := newMeter(10)
		for range tc.handled {
			m.handle()
		}
		if err := m.exact(); (err != nil) != tc.wrong {
			t.Errorf("%d of 10: error %v", tc.handled, err)
		}
	}
}
