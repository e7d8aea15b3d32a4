package sim

import (
	"context"
	"flag"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

var (
	seeds = flag.Int("seeds", 1000, "how many histories TestSeeds makes")
	from  = flag.Uint64("from", 1, "the first seed of TestSeeds")
	show  = flag.Bool("show", false, "print the log of each history")
)

func TestMain(m *testing.M) {
	flag.Parse()
	runtime.GOMAXPROCS(1) // goroutines that are ready at once then run in one order
	debug.SetGCPercent(-1)
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

// rare are the states that a run of 10,000 seeds must have seen.
var rare = strings.Split(`ack lost|answer to a commit lost|attempt given back|batch failed as a whole|
batch of operations|busy|bypassed|claim asked again|clock jump|commit hangs|conflict|dead letter failed|dead letter mismatch|
dead letter unknown|death|decision ack|decision leave|decision retry|delivery limit|duplicate|effect of a zombie|
exhausted by crashes|first run|full|handler cancelled|mismatch|operator's forget|operator's rerun|outage|outcome failed|
outcome succeeded|outcome unknown|outcome after the lease|output publish failed|parked|partition|poison|
publish step taken over|publisher hangs|rebalance|record lost|redelivered early|redelivered in progress|redrive|
released|renewal refused|reply lost|request late|request twice|rerun|rerun that names a success|row dead|
row published again|row refused|row without an answer|row's lease ended|second effect|settlement refused|
settlement repeated|stale decision|suspect|suspect refused|suspect runs|takeover|window passed`, "|")

// TestSeeds makes histories. `make sim SEEDS=n FROM=m` makes others.
func TestSeeds(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 100)
	}
	seen, sizes, lasted, began := map[string]int{}, []int{}, time.Duration(0), time.Now()
	for seed := *from; seed < *from+uint64(n); seed++ {
		r := Run(t, seed, nil)
		for state, n := range r.Seen {
			seen[state] += n
		}
		sizes, lasted = append(sizes, len(r.Log)), lasted+r.Lasted
		if *show {
			t.Logf("the log of seed %d\n%s", seed, strings.Join(r.Log, "\n"))
		}
		if r.Broken != nil {
			tell(t, r)
			return
		}
	}
	slices.Sort(sizes)
	events := 0
	for _, size := range sizes {
		events += size
	}
	median := sizes[len(sizes)/2]
	t.Logf("%d histories in %v, %d events, median %d, %v of virtual time", n, time.Since(began).Round(time.Millisecond),
		events, median, lasted.Round(time.Hour))
	if n >= 1000 && median < 300 {
		t.Errorf("a history has a median of %d events, want 300", median)
	}
	for _, state := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%8d %s", seen[state], state)
	}
	for _, state := range rare {
		if state = strings.TrimSpace(state); n >= 10_000 && seen[state] == 0 {
			t.Errorf("no history has seen %q", state)
		}
	}
}

// tell prints a history that breaks a promise, and a smaller one.
func tell(t *testing.T, r Result) {
	t.Helper()
	t.Errorf("seed %d: %s: %s", r.Seed, r.Broken.Promise, r.Broken.What)
	small := Shrink(t, r)
	t.Logf("the smallest history of this seed: %s\nwith these faults:\n  %s\n%s", small.Broken.What,
		strings.Join(small.Faults, "\n  "), strings.Join(small.Log, "\n"))
	t.Logf("to see it again: make sim SEEDS=1 FROM=%d; the whole log: go test ./internal/sim -run TestSeeds -v -show "+
		"-seeds 1 -from %d", r.Seed, r.Seed)
}

// The machine may keep a goroutine from running for so long that the scheduler lets another one go first. So a run whose
// log differs is made once more.
func TestRun_OneSeedTwentyTimesMakesTheSameLog(t *testing.T) {
	for seed := uint64(1); seed <= 26; seed++ {
		first := Run(t, seed, nil).Log
		if !slices.Equal(Run(t, seed, nil).Log, first) {
			first = Run(t, seed, nil).Log
		}
		for n := range 20 {
			again := Run(t, seed, nil).Log
			if !slices.Equal(again, first) {
				again = Run(t, seed, nil).Log
			}
			for i := range max(len(first), len(again)) {
				if one, other := at(first, i), at(again, i); one != other {
					t.Fatalf("seed %d, run %d: line %d is\n%s\nand was\n%s\nafter\n%s", seed, n+2, i, other, one,
						strings.Join(first[max(0, i-8):i], "\n"))
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
