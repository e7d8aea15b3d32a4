package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// Results are what a run must end with, in this order.
var results = []string{
	"ratio tier2_vs_handwritten",
	"ratio tier2_vs_handwritten_1", "ratio tier2_batch_vs_handwritten",
	"ratio duplicates_tier2_vs_handwritten",
}

func TestProgram_QuickRunGivesEveryResult(t *testing.T) {
	_, err := exec.LookPath("redis-server")
	if err == nil {
		_, err = kit.PostgresPrograms()
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
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

func TestIdentity_NumbersHaveDifferentIDs(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for n := range 10_000 {
		id := identity(n)
		if seen[id] || len(id) != 36 {
			t.Fatalf("number %d has the ID %q", n, id)
		}
		seen[id] = true
	}
}
