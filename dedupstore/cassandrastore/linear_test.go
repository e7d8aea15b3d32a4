package cassandrastore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
)

const (
	linearWorkers = 5
	linearOps     = 40
	linearTimeout = 400 * time.Millisecond // after which an answer counts as lost
)

// impatient gives up on a node that does not answer soon.
type impatient struct{ dedupstore.Store }

func (s impatient) Claim(ctx context.Context, r []dedupstore.Request) []dedupstore.ClaimResult {
	ctx, cancel := context.WithTimeout(ctx, linearTimeout)
	defer cancel()
	return s.Store.Claim(ctx, r)
}

func (s impatient) Extend(ctx context.Context, x []dedupstore.Extension) []error {
	ctx, cancel := context.WithTimeout(ctx, linearTimeout)
	defer cancel()
	return s.Store.Extend(ctx, x)
}

func (s impatient) Settle(ctx context.Context, x []dedupstore.Settling) []error {
	ctx, cancel := context.WithTimeout(ctx, linearTimeout)
	defer cancel()
	return s.Store.Settle(ctx, x)
}

// faults drops some replies, delays some, and holds some statements so long that their clients have gone.
func faults(seed uint64) func() cassandratest.Fault {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 1))
	return func() (f cassandratest.Fault) {
		mu.Lock()
		defer mu.Unlock()
		switch n := rnd.IntN(100); {
		case n < 5:
			f.DropReply = true
		case n < 7:
			f.Refuse, f.DropReply = gocql.ErrCodeWriteTimeout, true
		case n < 8:
			f.Refuse = gocql.ErrCodeWriteTimeout
		case n < 9:
			f.HoldRequest = linearTimeout + time.Duration(rnd.Int64N(int64(50*time.Millisecond)))
		case n < 19:
			f.DelayReply = time.Duration(1 + rnd.Int64N(int64(3*time.Millisecond)))
		}
		return f
	}
}

// TestLinearizable_WithLostAndDelayedReplies runs 2 histories of each kind, and 200 with ONCEMILL_PROOF=1.
func TestLinearizable_WithLostAndDelayedReplies(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"a store each": false, "one store": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stores, proxy := linearStores(t, shared, nil)
			linearizable(t, stores, proxy)
		})
	}
}

// linearStores returns stores on one table. Broken may change their statements.
func linearStores(t *testing.T, shared bool, broken func(*Store)) ([]dedupstore.Store, *cassandratest.Proxy) {
	first, proxy := throughProxy(t)
	stores := make([]dedupstore.Store, linearWorkers)
	for w := range stores {
		s := first
		if !shared {
			s = storeOf(t, first.session, first.cfg)
		}
		s.slack = 0
		if broken != nil {
			broken(s)
		}
		claim(t, s, request("warm "+ids.New()), dedupstore.AcquiredRun)
		stores[w] = impatient{s}
	}
	return stores, proxy
}

func linearizable(t *testing.T, stores []dedupstore.Store, proxy *cassandratest.Proxy) {
	histories := 2
	if proof {
		histories = 200
	}
	seed := rand.Uint64()
	classes := map[string]int{}
	undecided, illegal := 0, 0
	for i := range histories {
		proxy.Inject(faults(seed + uint64(i)))
		history := history(t, stores, seed+uint64(i))
		for _, op := range history {
			classes[op.Output.(lineartest.Output).Class]++
		}
		switch porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute) {
		case porcupine.Unknown: // so much was unheard that all orders cannot be tried
			undecided++
		case porcupine.Illegal:
			illegal++
			t.Errorf("history %d (seed %d) is illegal", i, seed+uint64(i))
		}
	}
	proxy.Inject(nil)
	t.Logf("seed %d: %d histories of %d operations, %d illegal, %d undecided; %d statements, %d replies dropped, "+
		"%d moved; answers %v", seed, histories, linearWorkers*linearOps, illegal, undecided, proxy.Statements(),
		proxy.Dropped(), proxy.Delayed(), classes)
	if undecided > 1+histories/50 {
		t.Errorf("%d of %d histories are undecided", undecided, histories)
	}
	if proxy.Dropped() < histories {
		t.Errorf("%d replies were dropped in %d histories", proxy.Dropped(), histories)
	}
	for _, class := range []dedupstore.Status{
		dedupstore.AcquiredRun, dedupstore.AcquiredPublish, dedupstore.Busy, dedupstore.Done, dedupstore.Mismatch,
	} {
		if proof && classes[string(class)] == 0 {
			t.Errorf("no claim was answered %s", class)
		}
	}
}

func history(t *testing.T, stores []dedupstore.Store, seed uint64) []porcupine.Operation {
	pool := lineartest.Pool{Group: "linear-" + ids.New()}
	return pool.History(t.Context(), seed, stores, linearOps, func(err error) {
		var record *dedupstore.RecordError
		var setup *dedupstore.SetupError
		if errors.As(err, &record) || errors.As(err, &setup) {
			t.Errorf("not an error of the network: %v", err)
		}
	})
}

// A checker that cannot fail proves nothing: stores with a statement that breaks a rule are found out.
func TestLinearizable_BrokenStoresAreFoundOut(t *testing.T) {
	t.Parallel()
	if !proof {
		t.Skip("only with ONCEMILL_PROOF=1")
	}
	cut := strings.TrimSuffix
	for name, breaks := range map[string]func(*Store){
		"claims whatever is there": func(s *Store) {
			s.cql.create = cut(s.cql.create, "rev = null AND rec = null") + "rec != 0x01"
		},
		"replaces what others wrote": func(s *Store) {
			s.cql.replace = cut(s.cql.replace, "rev = ? AND rec != null") + "rev >= ? AND rec != null"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stores, proxy := linearStores(t, false, breaks)
			for i := range 60 {
				proxy.Inject(faults(rand.Uint64()))
				history := history(t, stores, rand.Uint64())
				if porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute) == porcupine.Illegal {
					t.Logf("found out by history %d", i+1)
					return
				}
			}
			t.Error("60 histories look linearizable")
		})
	}
}
