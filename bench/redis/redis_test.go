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
	"ratio coalesced_vs_plain_256",
	"ratio coalesced_vs_plain_1",
	"ratio server_cpu_vs_floor",
	"value allocs_per_message",
	"value bytes_per_record",
	"ratio claim_p99_3m_vs_10k",
}

func TestProgram_QuickRunGivesEveryResult(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
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

func TestNumbered_NamesAreFreshAndOfEqualLength(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for cell := range 3 {
		for n := range int64(300) {
			m := numbered(cell, n)
			if len(m.name()) != nameBytes || seen[m.name()] || m.name() != prefix+":"+(fields{}).request(m).Key.String() {
				t.Fatalf("cell %d, message %d: record %q of %d bytes", cell, n, m.name(), len(m.name()))
			}
			seen[m.name()] = true
		}
	}
}
