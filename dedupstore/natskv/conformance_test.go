package natskv

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// The suite skips what a store does not have.
var (
	_ dedupstore.Inspector = (*Store)(nil)
	_ dedupstore.Checker   = (*Store)(nil)
)

func TestStore_ConformsOnASingleServer(t *testing.T) {
	t.Parallel()
	s := newStore(t, natstest.Start(t).JetStream(), Bucket("oncemill", 1))
	conforms(t, s, s)
}

func TestStore_ConformsOnACluster(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, 3)
	s := newStore(t, cluster.JetStream(), Bucket("oncemill", 3))
	conforms(t, s, upToDate{s, cluster}, "claim", "batch", "concurrency", "list", "count", "scopes", "change")
}

// upToDate lists when no replica lags, and asks again what a cluster does not answer because it elects a leader.
type upToDate struct {
	*Store
	cluster *natstest.Cluster
}

func (s upToDate) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return answered(requests, func(some []dedupstore.Request) []dedupstore.ClaimResult {
		return s.Store.Claim(ctx, some)
	}, func(r dedupstore.ClaimResult) error { return r.Err })
}

func (s upToDate) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return answered(extensions, func(some []dedupstore.Extension) []error { return s.Store.Extend(ctx, some) }, same)
}

func (s upToDate) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return answered(settlings, func(some []dedupstore.Settling) []error { return s.Store.Settle(ctx, some) }, same)
}

func same(err error) error { return err }

// answered does operations, and again those that got no answer.
func answered[In, Out any](all []In, do func([]In) []Out, failed func(Out) error) []Out {
	results := do(all)
	for i := range results {
		for range 20 {
			if err := failed(results[i]); err == nil || !strings.Contains(err.Error(), "no answer within") {
				break
			}
			results[i] = do(all[i : i+1])[0]
		}
	}
	return results
}

func (s upToDate) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	s.cluster.AwaitCurrent(s.stream)
	return s.Store.List(ctx, f, after)
}

func (s upToDate) Count(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Count, error) {
	s.cluster.AwaitCurrent(s.stream)
	return s.Store.Count(ctx, f, after)
}

// conforms runs the suite, or some kinds of its cases.
func conforms(t *testing.T, s *Store, tested dedupstore.Store, kinds ...string) {
	var widest atomic.Int64 // how far apart the bounds of the server's time were; on a busy machine answers take long
	// Leases begin at the late bound and end by the early one.
	advance := func(t *testing.T, d time.Duration) {
		bounds, err := s.now(t.Context())
		slack := max(widest.Load(), int64(bounds.Late.Sub(bounds.Early)))
		widest.Store(slack)
		over := bounds.Late.Add(d + time.Duration(slack))
		for err == nil && bounds.Early.Before(over) {
			<-time.After(min(over.Sub(bounds.Early), 50*time.Millisecond))
			bounds, err = s.now(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
	}
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		if kinds != nil {
			claimtest.Only(t, kinds...)
		}
		ttl := func(k dedupstore.Key) (time.Duration, bool) {
			seen, err := s.Look(t.Context(), []dedupstore.Key{k})
			if err != nil {
				t.Error(err)
				return 0, false
			}
			return time.Until(seen[0].Expires), seen[0].State != dedupstore.Absent
		}
		return storetest.Subject{
			Store: tested, Advance: func(d time.Duration) { advance(t, d) }, MaxBytes: 1 << 20, TTL: ttl,
		}
	})
}

func BenchmarkStore(b *testing.B) {
	s := newStore(b, natstest.Start(b).JetStream(), Bucket("oncemill", 1))
	storetest.Benchmarks(b, func(*testing.B) dedupstore.Store { return s })
}
