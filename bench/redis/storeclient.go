package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
)

// A client takes messages through claim and settle.
type client interface {
	// process does both and tells how long the claim took. Anything but a granted run is an error.
	process(ctx context.Context, m message) (claim time.Duration, err error)
	// check returns an error unless the message's record says that it succeeded.
	check(ctx context.Context, m message) error
	close() error
}

// storeClient is any store behind the contract.
type storeClient struct {
	claim  func(context.Context, dedupstore.Request) *dedupstore.ClaimResult
	settle func(context.Context, dedupstore.Settling) *error
	fields
	closing func() error
}

// openFull returns the Redis store with full records.
func openFull(addr string) (client, error) { return openStore(addr, fields{}) }

// openStore returns the Redis store behind the same lines as a guard has, on which operations of many callers travel
// together. If wanted, every goroutine gets a connection.
func openStore(addr string, f fields) (client, error) {
	rdb := redis.NewClient(options(addr))
	store, err := redisstore.New(rdb, redisstore.Config{Prefix: prefix, SkipCheck: true})
	if err != nil {
		return nil, err
	}
	if _, err := store.Check(context.Background()); err != nil { // before the clock starts
		return nil, errors.Join(err, rdb.Close())
	}
	lines := kit.NewLines(store, lease)
	return &storeClient{lines.Claim, lines.Settle, f, func() error {
		lines.Wait()
		store.Close()
		return rdb.Close()
	}}, nil
}

func options(addr string) *redis.Options {
	return &redis.Options{Addr: addr, PoolSize: 256, ContextTimeoutEnabled: true}
}

func (c *storeClient) process(ctx context.Context, m message) (time.Duration, error) {
	begun := time.Now()
	claimed := c.claim(ctx, c.request(m))
	took := time.Since(begun)
	if claimed.Err != nil {
		return 0, claimed.Err
	}
	if claimed.Answer.Status != dedupstore.AcquiredRun {
		return 0, errState(m, claimed.Answer.Status)
	}
	return took, *c.settle(ctx, dedupstore.Settling{Claim: claimed.Answer.Claim, Settlement: c.finish()})
}

func (c *storeClient) check(ctx context.Context, m message) error {
	m.owner = "somebody-else-asks"
	known := c.claim(ctx, c.request(m))
	if known.Err != nil {
		return known.Err
	}
	a := known.Answer
	if a.Status != dedupstore.Done || a.Outcome.Kind != dedupstore.Succeeded || len(a.Outcome.Result) != len(c.result) {
		return errState(m, a.Status)
	}
	return nil
}

func (c *storeClient) close() error { return c.closing() }

// openNothing returns a client whose store does nothing: it grants every claim and knows every message as succeeded.
// Its cost is the load's own.
func openNothing() client {
	claim := func(_ context.Context, r dedupstore.Request) *dedupstore.ClaimResult {
		if r.Owner == "somebody-else-asks" {
			done := dedupstore.Outcome{Kind: dedupstore.Succeeded}
			return &dedupstore.ClaimResult{Answer: dedupstore.Answer{Status: dedupstore.Done, Outcome: done}}
		}
		c := dedupstore.Claim{Key: r.Key, Owner: r.Owner, Fence: 1, Attempt: 1, Lease: r.Lease, Retention: r.Retention}
		a := dedupstore.Answer{Status: dedupstore.AcquiredRun, Found: dedupstore.Absent, Claim: c}
		return &dedupstore.ClaimResult{Answer: a}
	}
	return &storeClient{
		claim: claim, settle: func(context.Context, dedupstore.Settling) *error { return new(error) },
		closing: func() error { return nil },
	}
}
