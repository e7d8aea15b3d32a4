package main

import (
	"testing"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

func TestProgram_QuickRunGivesEveryResult(t *testing.T) {
	kit.Need(t, "redis-server", "initdb", "mariadbd")
	kit.QuickRun(t, experiments,
		"ratio tier2_vs_handwritten",
		"ratio tier2_vs_handwritten_1", "ratio tier2_batch_vs_handwritten",
		"ratio duplicates_tier2_vs_handwritten", "ratio mariadb_tier2_vs_handwritten",
		"ratio mariadb_tier2_batch_vs_handwritten", "ratio mariadb_duplicates_tier2_vs_handwritten",
	)
}

func TestProgram_QuickRunComparesFullInboxesWithEmptyOnes(t *testing.T) {
	kit.QuickRecords(t, records, "postgres", "mysql", "sqlite")
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
