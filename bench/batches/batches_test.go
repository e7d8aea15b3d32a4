package main

import (
	"testing"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

func TestProgram_QuickRunGivesEveryResult(t *testing.T) {
	kit.Need(t)
	kit.QuickRun(t, experiments, "ratio inbox_vs_leased", "ratio inbox_vs_plain", "ratio batched_inbox_vs_leased",
		"ratio batched_inbox_vs_plain", "value batched_inbox_sent", "value inbox_sent")
}
