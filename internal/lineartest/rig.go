package lineartest

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// Workers is how many call the store at once, each Ops times in a history.
const (
	Workers = 5
	Ops     = 40
)

// A History is what the workers saw.
type History = []porcupine.Operation

// A Proxy is between a store and its server. It loses and delays answers.
type Proxy interface {
	Dropped() int
	Delayed() int
}

// OnlyProved skips what takes a quiet machine or minutes.
func OnlyProved(t testing.TB) {
	t.Helper()
	if !proved() {
		t.Skip("only with ONCEMILL_PROOF=1: make proof-linearizability runs it")
	}
}

func proved() bool { return os.Getenv("ONCEMILL_PROOF") != "" }

// Linearizable makes so many histories, and 200 with ONCEMILL_PROOF=1, each with the faults of a seed. It fails the
// test for each that no order of the operations explains.
func Linearizable(t *testing.T, histories int, proxy Proxy, history func(seed uint64) History) {
	t.Helper()
	if proved() {
		histories = 200
	}
	seed := rand.Uint64()
	classes := map[string]int{}
	operations, undecided, illegal := 0, 0, 0
	for i := range histories {
		history := history(seed + uint64(i))
		operations += len(history)
		for _, op := range history {
			classes[op.Output.(Output).Class]++
		}
		switch check(history, time.Minute) {
		case porcupine.Unknown: // so much was unheard that all orders cannot be tried
			undecided++
		case porcupine.Illegal:
			illegal++
			t.Errorf("history %d (seed %d) is illegal", i, seed+uint64(i))
		}
	}
	t.Logf("seed %d: %d histories, %d operations, %d illegal, %d undecided; %d replies dropped, %d delayed; answers %v",
		seed, histories, operations, illegal, undecided, proxy.Dropped(), proxy.Delayed(), classes)
	if undecided > 1+histories/50 {
		t.Errorf("%d of %d histories are undecided", undecided, histories)
	}
	if proxy.Dropped() < histories {
		t.Errorf("%d replies were dropped in %d histories", proxy.Dropped(), histories)
	}
	for _, class := range []dedupstore.Status{
		dedupstore.AcquiredRun, dedupstore.AcquiredPublish, dedupstore.Busy, dedupstore.Done, dedupstore.Mismatch,
	} {
		if histories >= 8 && classes[string(class)] == 0 {
			t.Errorf("no claim was answered %s", class)
		}
	}
}

// FoundOut fails the test unless one of so many histories is illegal: the store breaks a rule. A checker that cannot
// fail proves nothing.
func FoundOut(t *testing.T, histories int, history func(seed uint64) History) {
	t.Helper()
	seed := rand.Uint64()
	for i := range histories {
		if check(history(seed+uint64(i)), soon) == porcupine.Illegal {
			t.Logf("found out by history %d", i+1)
			return
		}
	}
	t.Errorf("%d histories look linearizable", histories)
}

// soon is how long FoundOut tries the orders of a history. Another history shows the fault with fewer of them.
const soon = 2 * time.Second

func check(history History, limit time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(checker(), history, limit)
}

// A Crowd makes histories.
type Crowd struct {
	Stores []dedupstore.Store // of each worker
	Ops    int                // of each worker; zero means Ops

	// Network reports whether an error can be one of the network: others fail the test. Nil means what is neither of a
	// record nor of the setup.
	Network func(error) bool

	// Again is for clients that send again what was not answered. It is called before an operation, and what it returns
	// after it, with the time that it took: the operation may have had so many more effects. Nil means none.
	Again func(worker int, owner string) func(took time.Duration) int
}

// History lets the workers run operations on a few new keys at once, and returns what they saw.
func (c Crowd) History(t *testing.T, seed uint64) (history History) {
	t.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	pool := pool{group: "linear-" + ids.New()}
	if c.Ops == 0 {
		c.Ops = Ops
	}
	if c.Network == nil {
		c.Network = func(err error) bool {
			_, record := errors.AsType[*dedupstore.RecordError](err)
			_, setup := errors.AsType[*dedupstore.SetupError](err)
			return !record && !setup
		}
	}
	begin := time.Now()
	for w, s := range c.Stores {
		rnd := rand.New(rand.NewPCG(seed, uint64(w)+2))
		group.Go(func() {
			for range c.Ops {
				in, again := pool.draw(rnd), func(time.Duration) int { return 0 }
				if c.Again != nil {
					again = c.Again(w, in.Owner)
				}
				call := time.Since(begin).Nanoseconds()
				out, err := pool.perform(t.Context(), s, in)
				end := time.Since(begin).Nanoseconds()
				if err != nil {
					end = math.MaxInt64
					if !c.Network(err) {
						t.Errorf("not an error of the network: %v", err)
					}
				}
				op := porcupine.Operation{ClientId: w, Input: in, Call: call, Output: out, Return: end}
				mu.Lock()
				history = append(history, op)
				for range again(time.Duration(end - call)) {
					op.Output, op.Return = Output{Unheard: true}, math.MaxInt64
					history = append(history, op)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return history
}

// An Impatient store takes an answer that is not there after a time for lost.
type Impatient struct {
	dedupstore.Store
	Timeout time.Duration
	Before  func(context.Context) // called before each operation; may be nil
}

func (s Impatient) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	if s.Before != nil {
		s.Before(ctx)
	}
	return ctx, cancel
}

// Claim implements [dedupstore.Store].
func (s Impatient) Claim(ctx context.Context, r []dedupstore.Request) []dedupstore.ClaimResult {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	return s.Store.Claim(ctx, r)
}

// Extend implements [dedupstore.Store].
func (s Impatient) Extend(ctx context.Context, x []dedupstore.Extension) []error {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	return s.Store.Extend(ctx, x)
}

// Settle implements [dedupstore.Store].
func (s Impatient) Settle(ctx context.Context, x []dedupstore.Settling) []error {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	return s.Store.Settle(ctx, x)
}

// Rand returns the randomness of the faults of a seed. Many may draw at once.
func Rand(seed uint64) *rand.Rand { return rand.New(&source{pcg: rand.NewPCG(seed, 1)}) }

type source struct {
	mu  sync.Mutex
	pcg *rand.PCG
}

func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pcg.Uint64()
}
