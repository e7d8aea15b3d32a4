package main

import (
	"os"
	"testing"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

func TestMain(m *testing.M) {
	kit.ServeIfAsked()
	os.Exit(m.Run())
}

func TestProgram_QuickRunGivesEveryResult(t *testing.T) {
	kit.Need(t, "initdb")
	kit.QuickRun(t, experiments,
		"ratio drain_vs_forwarder",
		"ratio drain_vs_river",
		"ratio drain_vs_river_fast",
		"ratio drain_removed_vs_forwarder",
		"ratio drain_log_vs_forwarder",
		"value wal_bytes_per_message",
		"ratio insert_wake_vs_none",
		"ratio insert_wake_vs_none_alone",
		"value p99_ms_wake",
		"value p99_ms_log",
		"ratio drain_1m_vs_0",
		"ratio relays_2_vs_1",
	)
}

func TestProgram_QuickRunComparesFullOutboxesWithEmptyOnes(t *testing.T) {
	kit.QuickRecords(t, records, "postgres", "mysql", "sqlite")
}

func TestTally_WhatIsMissingStrangeOrCutIsAnError(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		payloads [][]byte
		copies   int
		wrong    bool
	}{
		{"all", [][]byte{payload(1), payload(0)}, 0, false},
		{"a copy", [][]byte{payload(1), payload(0), payload(1)}, 1, false},
		{"one is missing", [][]byte{payload(1), payload(1)}, 1, true},
		{"one too many", [][]byte{payload(0), payload(1), payload(2)}, 0, true},
		{"no number", [][]byte{payload(0), []byte("{}")}, 0, true},
		{"cut", [][]byte{payload(0), payload(1)[:100]}, 0, true},
	} {
		seen := newTally(2)
		var err error
		for _, p := range tc.payloads {
			if err == nil {
				err = seen.add(p)
			}
		}
		if err == nil {
			err = seen.complete()
		}
		if (err != nil) != tc.wrong || seen.copies != tc.copies {
			t.Errorf("%s: %d copies, error %v", tc.name, seen.copies, err)
		}
	}
}

func TestPayload_HasItsSizeAndItsNumber(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 29_999, 1_234_567} {
		p := payload(n)
		if got, err := numberOf(p); err != nil || got != n || len(p) != payloadBytes {
			t.Errorf("%d: number %d, %d bytes, error %v", n, got, len(p), err)
		}
	}
}
