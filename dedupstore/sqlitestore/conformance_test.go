package sqlitestore

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

// TestStore_Conforms also is for databases that are opened without any setting but WAL.
func TestStore_Conforms(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t, "_txlock", "", "_busy_timeout", "")
	conforms(t, s, s)
}

// TestInbox_ConformsInTheLeasedForm is the same code under another name, and as slow.
func TestInbox_ConformsInTheLeasedForm(t *testing.T) {
	t.Parallel()
	if !proof() {
		t.Skip("ONCEMILL_PROOF is not set")
	}
	s, _ := newStore(t)
	conforms(t, s, s.Inbox())
}

func conforms(t *testing.T, s *Store, tested dedupstore.Store) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		return storetest.Subject{Store: tested, TTL: ttlOf(t, s)}
	})
}

func ttlOf(t *testing.T, s *Store) func(dedupstore.Key) (time.Duration, bool) {
	return func(k dedupstore.Key) (time.Duration, bool) {
		now := clock()
		rec, err := s.read(t.Context(), k.String(), now)
		if err != nil {
			t.Error(err)
			return 0, false
		}
		return rec.Expires.Sub(now), rec.State != ""
	}
}

func BenchmarkStore(b *testing.B) {
	s, _ := newStore(b, "_synchronous", "NORMAL")
	storetest.Benchmarks(b, func(*testing.B) dedupstore.Store { return s })
}
