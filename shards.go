package oncemill

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/batch"
)

// A shard is a part of the store that can fail alone (dedupstore.Sharded). It has the breaker that keeps claims from
// it while it is down, and the lines on which operations of many calls go to it together. Extensions and settlements
// hold what matters, and are always tried.
type shard struct {
	breaker *breaker
	claims  batch.Queue[dedupstore.Request, dedupstore.ClaimResult]
	probes  batch.Queue[dedupstore.Request, dedupstore.ClaimResult] // claims that go alone, while others fail
	extends batch.Queue[dedupstore.Extension, error]
	settles batch.Queue[dedupstore.Settling, error]
}

// shards are those of a guard's store.
type shards struct {
	store   dedupstore.Store
	sharded dedupstore.Sharded // nil: there is one shard
	policy  StoreDown
	log     *slog.Logger
	timeout time.Duration // of an operation

	mu      sync.Mutex
	byShard map[string]*shard
}

func newShards(store dedupstore.Store, policy Policy) *shards {
	sharded, _ := store.(dedupstore.Sharded)
	return &shards{
		store: store, sharded: sharded, policy: policy.StoreDown,
		log:     policy.Logger.With("store", strings.TrimPrefix(fmt.Sprintf("%T", store), "*")),
		timeout: operationTimeout(policy.Lease), byShard: map[string]*shard{},
	}
}

// operationTimeout bounds one operation of the store, so that several fit into a lease.
func operationTimeout(lease time.Duration) time.Duration {
	return min(max(lease/6, minLease), 5*time.Second)
}

// of returns the shard that has a key.
func (s *shards) of(ctx context.Context, key *dedupstore.Key) *shard {
	name := ""
	if s.sharded != nil {
		name = s.sharded.Shard(ctx, *key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.byShard[name]
	if found == nil {
		log := s.log
		if name != "" {
			log = log.With("shard", name)
		}
		found = s.make(log)
		s.byShard[name] = found
	}
	return found
}

func (s *shards) make(log *slog.Logger) *shard {
	made := &shard{breaker: newBreaker(s.policy, log)}
	made.claims.Send, made.claims.Timeout = made.claim(s.store), s.timeout
	made.claims.Failed = func(err error) dedupstore.ClaimResult { return dedupstore.ClaimResult{Err: err} }
	made.probes.Send, made.probes.Timeout, made.probes.Failed = s.store.Claim, s.timeout, made.claims.Failed
	made.probes.Alone = func(dedupstore.Request) bool { return true }
	made.extends.Send, made.extends.Timeout, made.extends.Failed = s.store.Extend, s.timeout, itself
	made.settles.Send, made.settles.Timeout, made.settles.Failed = s.store.Settle, s.timeout, itself
	made.settles.Alone = large
	return made
}

// claim is how claims travel together, unless one before them has failed: they may have waited for that one.
func (s *shard) claim(store dedupstore.Store) func(context.Context, []dedupstore.Request) []dedupstore.ClaimResult {
	return func(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
		if s.breaker.healthy.Load() {
			sent := time.Now()
			results := store.Claim(ctx, requests)
			for i := range results {
				if err := results[i].Err; err != nil {
					s.breaker.report(&requests[i].Key, sent, err)
				}
			}
			return results
		}
		results := make([]dedupstore.ClaimResult, len(requests))
		for i := range results {
			results[i].Err = errUnasked
		}
		return results
	}
}

// large reports whether a settlement takes long to send and to store.
func large(s dedupstore.Settling) bool {
	const most = 64 << 10
	f, ok := s.Settlement.(dedupstore.Finish)
	return ok && len(f.Outcome.Result)+size(f.Outcome.Produced) > most
}

func itself(err error) error { return err }

// wait returns when nothing is under way.
func (s *shards) wait() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.byShard))
	s.mu.Unlock()
	for _, one := range all { // what is told of an answer may make further claims
		one.claims.Wait()
		one.extends.Wait()
		one.settles.Wait()
	}
}
