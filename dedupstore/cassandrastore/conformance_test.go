package cassandrastore

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

// The suite skips what a store does not have.
var (
	_ dedupstore.Inspector = (*Store)(nil)
	_ dedupstore.Checker   = (*Store)(nil)
)

func TestStore_Conforms(t *testing.T) {
	t.Parallel()
	shared := newStore(t)
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		s, clock := clocked(t, shared)
		ttl := func(k dedupstore.Key) (time.Duration, bool) {
			var rev, rec *int
			q := s.session.Query("SELECT TTL(rev), TTL(rec) FROM "+s.cfg.located()+" WHERE id = ?", k.String())
			if err := q.ScanContext(t.Context(), &rev, &rec); err != nil || rev == nil || rec == nil || *rev != *rec {
				t.Logf("TTLs of %q: %v, %v, %v", k, rev, rec, err)
				return 0, false
			}
			return time.Duration(*rev-1) * time.Second, true // it may go any time in its last second
		}
		return storetest.Subject{Store: s, Advance: clock.Advance, MaxBytes: maxRecord, TTL: ttl}
	})
}

func BenchmarkStore(b *testing.B) {
	s := newStore(b)
	storetest.Benchmarks(b, func(*testing.B) dedupstore.Store { return s })
}
