package main

import (
	"testing"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

func TestProgram_QuickRunGivesEveryResult(t *testing.T) {
	kit.Need(t, "redis-server")
	kit.QuickRun(t, experiments,
		"ratio coalesced_vs_plain_256",
		"ratio coalesced_vs_plain_1",
		"ratio server_cpu_vs_floor",
		"value allocs_per_message",
		"value bytes_per_record",
		"ratio claim_p99_3m_vs_10k",
	)
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
