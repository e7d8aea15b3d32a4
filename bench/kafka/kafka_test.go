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
	kit.Need(t, "redis-server", "java")
	kit.QuickRun(t, experiments,
		"ratio kafka_worker_vs_raw",
		"ratio kafka_worker_per_key_vs_raw",
		"ratio kafka_worker_batches_vs_raw",
	)
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
