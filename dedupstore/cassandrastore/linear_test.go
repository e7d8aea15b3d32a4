package cassandrastore

import (
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
)

// linearTimeout is after what time an answer counts as lost.
const linearTimeout = 400 * time.Millisecond

// faults drops some replies, delays some, and holds some statements so long that their clients have gone.
func faults(seed uint64) func() cassandratest.Fault {
	rnd := lineartest.Rand(seed)
	return func() (f cassandratest.Fault) {
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

// TestLinearizable_WithLostAndDelayedReplies runs 200 histories of each kind.
func TestLinearizable_WithLostAndDelayedReplies(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
	for name, shared := range map[string]bool{"a store each": false, "one store": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, history := histories(t, shared, nil)
			lineartest.Linearizable(t, 200, proxy, history)
		})
	}
}

// histories makes them of stores on one table. Broken may change their statements.
func histories(
	t *testing.T, shared bool, broken func(*Store),
) (*cassandratest.Proxy, func(seed uint64) lineartest.History) {
	first, proxy := throughProxy(t)
	var crowd lineartest.Crowd
	for range lineartest.Workers {
		s := first
		if !shared {
			s = storeOf(t, first.session, first.cfg)
		}
		s.slack = 0
		if broken != nil {
			broken(s)
		}
		claim(t, s, request("warm "+ids.New()), dedupstore.AcquiredRun)
		crowd.Stores = append(crowd.Stores, lineartest.Impatient{Store: s, Timeout: linearTimeout})
	}
	return proxy, func(seed uint64) lineartest.History {
		proxy.Inject(faults(seed))
		return crowd.History(t, seed)
	}
}

// A checker that cannot fail proves nothing: stores with a statement that breaks a rule are found out.
func TestLinearizable_BrokenStoresAreFoundOut(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
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
			_, history := histories(t, false, breaks)
			lineartest.FoundOut(t, 200, history)
		})
	}
}
