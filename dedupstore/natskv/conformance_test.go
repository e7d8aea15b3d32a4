package natskv

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// The suite skips what a store does not have.
var (
	_ dedupstore.Inspector = (*Store)(nil)
	_ dedupstore.Checker   = (*Store)(nil)
)

func TestStore_ConformsOnASingleServer(t *testing.T) {
	t.Parallel()
	conforms(t, newStore(t, natstest.Start(t).JetStream(), Bucket("oncemill", 1)))
}

func TestStore_ConformsOnACluster(t *testing.T) {
	t.Parallel()
	conforms(t, newStore(t, natstest.StartCluster(t, 3).JetStream(), Bucket("oncemill", 3)))
}

func conforms(t *testing.T, s *Store) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		return storetest.Subject{Store: s, MaxBytes: 1 << 20, TTL: func(k dedupstore.Key) (time.Duration, bool) {
			seen, err := s.Look(t.Context(), []dedupstore.Key{k})
			if err != nil {
				t.Error(err)
				return 0, false
			}
			return time.Until(seen[0].Expires), seen[0].State != dedupstore.Absent
		}}
	})
}

func BenchmarkStore(b *testing.B) {
	s := newStore(b, natstest.Start(b).JetStream(), Bucket("oncemill", 1))
	storetest.Benchmarks(b, func(*testing.B) dedupstore.Store { return s })
}
