package redisstore

import (
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// The suite skips what a store does not have.
var _ dedupstore.Inspector = (*Store)(nil)

func TestStore_ConformsOnASingleServer(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		return storetest.Subject{Store: s, TTL: ttlOf(t, s, rdb)}
	})
}

// Operations of such a client have goroutines of their own.
func TestStore_ConformsWithAClientThatDoesNotHeedContexts(t *testing.T) {
	t.Parallel()
	rdb := deafClient(t, redistest.Start(t))
	s := newStore(t, rdb)
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		claimtest.Only(t, "context", "batch", "concurrency")
		return storetest.Subject{Store: s, TTL: ttlOf(t, s, rdb)}
	})
}

// TestStore_ConformsWithoutPlainClaims is for servers that cannot make them.
func TestStore_ConformsWithoutPlainClaims(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	s.ready.Store(true) // without Check
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		claimtest.Only(t, "claim", "batch", "concurrency", "rerun", "expiry")
		return storetest.Subject{Store: s, TTL: ttlOf(t, s, rdb)}
	})
	if s.plain.Load() {
		t.Error("plain claims were made")
	}
}

func TestStore_ConformsWithConditionalFinishes(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client()
	rdb.AddHook(new(byScript))
	s := newStore(t, rdb)
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		claimtest.Only(t, "finish", "publish", "release", "batch")
		return storetest.Subject{Store: s, TTL: ttlOf(t, s, rdb)}
	})
}

func TestStore_ConformsOnACluster(t *testing.T) {
	t.Parallel()
	// No failover is wanted here, however busy the machine.
	rdb := redistest.StartCluster(t).Client()
	s := newStore(t, rdb)
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		claimtest.Only(t, "claim", "batch", "concurrency", "keys", "list", "count", "scopes", "change")
		return storetest.Subject{Store: s, TTL: ttlOf(t, s, rdb)}
	})
}

func TestStore_ConformsOnValkey(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartValkey(t).Client()
	s := newStore(t, rdb)
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		claimtest.Only(t, "claim", "finish", "publish", "expiry", "batch", "list", "count")
		return storetest.Subject{Store: s, TTL: ttlOf(t, s, rdb)}
	})
}

// It stands in for real servers where there are none, and is slow with the race detector.
func TestStore_ConformsOnMiniredis(t *testing.T) {
	if !testing.Short() && !proof {
		t.Skip("real servers are asked instead; -short or ONCEMILL_PROOF=1 runs it")
	}
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		server := miniredis.RunT(t)
		// Its scripts take long on a machine that is busy: a client that gave up would send them once more.
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: time.Minute})
		t.Cleanup(func() { rdb.Close() })
		s := must(New(rdb, Config{SkipCheck: true}))(t)
		var mu sync.Mutex
		now := time.Now()
		server.SetTime(now)
		server.ClockTTL(true) // keys expire by the time that is set
		return storetest.Subject{Store: s, TTL: ttlOf(t, s, rdb), Advance: func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(d)
			server.SetTime(now)
		}}
	})
}

func ttlOf(t *testing.T, s *Store, rdb redis.UniversalClient) func(dedupstore.Key) (time.Duration, bool) {
	return func(k dedupstore.Key) (time.Duration, bool) {
		ttl, err := rdb.PTTL(t.Context(), s.name(k)).Result()
		if err != nil {
			t.Error(err)
		}
		return ttl, ttl > 0
	}
}

func BenchmarkStore(b *testing.B) {
	s, _ := onServer(b)
	storetest.Benchmarks(b, func(*testing.B) dedupstore.Store { return s })
}
