package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

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
	store dedupstore.Store
	fields
	closing func() error
}

// openFull returns the Redis store with full records.
func openFull(addr string) (client, error) { return openStore(addr, fields{}) }

// openStore returns the Redis store, with a connection for every goroutine if it wants them.
func openStore(addr string, f fields) (client, error) {
	rdb := redis.NewClient(options(addr))
	store, err := redisstore.New(rdb, redisstore.Config{Prefix: prefix})
	if err != nil {
		return nil, err
	}
	return &storeClient{store, f, func() error {
		store.Close()
		return rdb.Close()
	}}, nil
}

func options(addr string) *redis.Options {
	return &redis.Options{Addr: addr, PoolSize: 256, ContextTimeoutEnabled: true}
}

func (c *storeClient) process(ctx context.Context, m message) (time.Duration, error) {
	begun := time.Now()
	a, err := dedupstore.ClaimOne(ctx, c.store, c.request(m))
	claim := time.Since(begun)
	if err != nil {
		return 0, err
	}
	if a.Status != dedupstore.AcquiredRun {
		return 0, errState(m, a.Status)
	}
	return claim, dedupstore.SettleOne(ctx, c.store, a.Claim, c.finish())
}

func (c *storeClient) check(ctx context.Context, m message) error {
	m.owner = "somebody-else-asks"
	a, err := dedupstore.ClaimOne(ctx, c.store, c.request(m))
	if err != nil {
		return err
	}
	if a.Status != dedupstore.Done || a.Outcome.Kind != dedupstore.Succeeded || len(a.Outcome.Result) != len(c.result) {
		return errState(m, a.Status)
	}
	return nil
}

func (c *storeClient) close() error { return c.closing() }

// openNothing returns a client whose store does nothing: what it costs is the load's own.
func openNothing() client {
	return &storeClient{store: nothing{}, closing: func() error { return nil }}
}

// nothing grants every claim and knows every message as succeeded.
type nothing struct{}

func (s nothing) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (nothing) claimOne(_ context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if r.Owner == "somebody-else-asks" {
		return dedupstore.Answer{Status: dedupstore.Done, Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}}, nil
	}
	c := dedupstore.Claim{Key: r.Key, Owner: r.Owner, Fence: 1, Attempt: 1, Lease: r.Lease, Retention: r.Retention}
	return dedupstore.Answer{Status: dedupstore.AcquiredRun, Found: dedupstore.Absent, Claim: c}, nil
}

func (s nothing) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, s.extendOne)
}

func (nothing) extendOne(context.Context, dedupstore.Extension) error { return nil }

func (s nothing) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (nothing) settleOne(context.Context, dedupstore.Claim, dedupstore.Settlement) error { return nil }
