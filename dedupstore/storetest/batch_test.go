package storetest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/dedupstore"
)

// A plain store has no batches.
type plain struct{ dedupstore.Store }

func TestRun_SkipsBatchesOfAStoreThatHasNoneAndSaysSo(t *testing.T) {
	t.Parallel()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var said string
				r := record(t, func(tb testing.TB) { c.check(skipper{tb, &said}, Subject{Store: plain{newToy("")}}) })
				if r.failed {
					t.Errorf("failed: %q", r.lines)
				}
				if isBatch := strings.HasPrefix(c.name, "batch/"); isBatch != (said != "") {
					t.Errorf("skipped with %q", said)
				} else if isBatch && !strings.Contains(said, "storetest.plain does not implement dedupstore.Batcher") {
					t.Errorf("skipped with %q, want why", said)
				}
			})
		})
	}
}

// A skipper notes why a case is skipped, without skipping the test.
type skipper struct {
	testing.TB
	said *string
}

func (s skipper) Skipf(format string, args ...any) {
	*s.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestBatchCases_AreEachThereForABrokenRule(t *testing.T) {
	t.Parallel()
	var noticing []string
	for _, name := range brokenBatches {
		noticing = append(noticing, name)
	}
	for _, c := range batchCases {
		if !slices.Contains(noticing, c.name) {
			t.Errorf("no broken store is there for %s", c.name)
		}
	}
}
