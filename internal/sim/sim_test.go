package sim

import (
	"context"
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

var (
	seeds = flag.Int("seeds", 200, "how many histories TestSeeds makes")
	from  = flag.Uint64("from", 1, "the first seed of TestSeeds")
	show  = flag.Bool("show", false, "print the log of each history")
)

func TestMain(m *testing.M) {
	flag.Parse()
	runtime.GOMAXPROCS(1) // goroutines then run in an order that hardly ever differs
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

func TestStore_KeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.RunVirtual(t, func(*testing.T) storetest.Subject {
		return storetest.Subject{Store: &conn{server: newServer()}}
	})
}

func TestInbox_KeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.RunInboxVirtual(t, func(*testing.T) storetest.InboxSubject {
		s := newServer()
		return storetest.InboxSubject{
			Inbox: &inbox{conn{server: s}},
			Effect: func(ctx context.Context, name string) error {
				tx := transactionOf(ctx)
				if tx.over {
					return errOver
				}
				tx.names, tx.fences = append(tx.names, name), append(tx.fences, 0)
				return ctx.Err()
			},
			Effects: func(_ context.Context, name string) (int, error) { return s.effects[name], nil },
			Conflict: func(ctx context.Context) error {
				transactionOf(ctx).refused = errConflict
				return errConflict
			},
			LoseCommit: func(ctx context.Context, applied bool) {
				transactionOf(ctx).lose = map[bool]int{true: 1, false: 2}[applied]
			},
			HideRecord: func(c dedupstore.Claim, hidden bool) { s.hidden[c.Key] = hidden },
		}
	})
}

func TestSeeds(t *testing.T) {
	seen, sizes := map[string]int{}, []int{}
	began := time.Now()
	for seed := *from; seed < *from+uint64(*seeds); seed++ {
		r := Run(t, seed, nil)
		for state, n := range r.Seen {
			seen[state] += n
		}
		sizes = append(sizes, len(r.Log))
		if *show || r.Broken != nil {
			for _, line := range r.Log {
				t.Log(line)
			}
		}
		if r.Broken != nil {
			t.Fatalf("seed %d: %s: %s", seed, r.Broken.Promise, r.Broken.What)
		}
	}
	slices.Sort(sizes)
	t.Logf("%d seeds in %v, median %d events", *seeds, time.Since(began), sizes[len(sizes)/2])
	for state, n := range seen {
		t.Log(state, n)
	}
}

func TestOneSeedTwentyTimesMakesTheSameLog(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3, 5, 8, 13, 21, 34, 55, 89} {
		first := Run(t, seed, nil)
		for n := range 19 {
			again := Run(t, seed, nil)
			for i := range max(len(first.Log), len(again.Log)) {
				if i >= len(first.Log) || i >= len(again.Log) || first.Log[i] != again.Log[i] {
					t.Fatalf("seed %d, run %d: line %d is\n%s\nand was\n%s", seed, n+2, i, at(again.Log, i), at(first.Log, i))
				}
			}
		}
	}
}

func at(log []string, i int) string {
	if i < len(log) {
		return log[i]
	}
	return "missing"
}
