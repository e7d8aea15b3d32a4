package main

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/producer"
)

// A guarded handler is one behind a Processor, with everything as it is by default.
type guarded struct {
	once  *consumer.Processor
	write func(ctx context.Context, id string) error
	end   func()
}

func newGuarded(store dedupstore.Store, write func(ctx context.Context, id string) error, end func()) (system, error) {
	once, err := consumer.New(store, consumer.Config{Group: "bench"})
	return guarded{once, write, end}, err
}

func (g guarded) handle(ctx context.Context, id string, payload []byte) error {
	d := consumer.Delivery{
		Handler: "effect", Topic: "payments", Header: producer.Header{producer.HeaderID: id}, Payload: payload,
		Count: 1,
	}
	decision := g.once.Process(ctx, d, func(ctx context.Context) error { return g.write(ctx, id) })
	if decision.Action != consumer.Ack || decision.Err != nil {
		return fmt.Errorf("message %s: %s, %w", id, decision.Action, decision.Err)
	}
	return nil
}

func (g guarded) close() { g.end() }

func nothing() {}

// inTransaction is the handler of an inbox.
func inTransaction(ctx context.Context, id string) error { return effect(ctx, pgstore.Tx(ctx), id) }

// byItself is the handler of a leased store.
func byItself(c clients) func(context.Context, string) error {
	return func(ctx context.Context, id string) error { return effect(ctx, c.pool, id) }
}

func openPostgres(ctx context.Context, c clients) (*pgstore.Store, error) {
	store, err := pgstore.New(c.pool, pgstore.Config{})
	if err != nil {
		return nil, err
	}
	return store, store.Migrate(ctx)
}

func openInbox(ctx context.Context, c clients) (system, error) {
	store, err := openPostgres(ctx, c)
	if err != nil {
		return nil, err
	}
	return newGuarded(store.Inbox(), inTransaction, nothing)
}

func openLeasedPostgres(ctx context.Context, c clients) (system, error) {
	store, err := openPostgres(ctx, c)
	if err != nil {
		return nil, err
	}
	return newGuarded(store, byItself(c), nothing)
}

func openLeasedRedis(_ context.Context, c clients) (system, error) {
	store, err := redisstore.New(c.redis, redisstore.Config{})
	if err != nil {
		return nil, err
	}
	return newGuarded(store, byItself(c), store.Close)
}
