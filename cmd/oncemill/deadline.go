package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
)

// A server is what has to answer each question in time.
type server struct {
	name    string // with its address, as far as that may be told
	timeout time.Duration
}

// server is what an address leads to.
func (a *app) server(what, address string) server {
	if at, _, err := split(address); err == nil {
		what += " " + redacted(at)
	}
	return server{what, a.timeout()}
}

// ask asks a server, and says so if it does not answer in time.
func ask[T any](ctx context.Context, s server, question func(context.Context) (T, error)) (T, error) {
	within, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	answer, err := question(within)
	if err != nil && errors.Is(within.Err(), context.DeadlineExceeded) { // a caller may have set the same deadline
		err = fmt.Errorf("%s has not answered within --timeout (%v): see whether it is there, or give it longer: %w",
			s.name, s.timeout, err)
	}
	return answer, err
}

// A timedStore gives each question of a command a deadline: drivers of SQL set none. A page is small, so that it takes
// far less. The command neither claims nor notes anything.
type timedStore struct {
	store
	server
}

func (t timedStore) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	return ask(ctx, t.server, func(ctx context.Context) ([]dedupstore.Record, error) {
		return t.store.Look(ctx, keys)
	})
}

func (t timedStore) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	return ask(ctx, t.server, func(ctx context.Context) (dedupstore.Page, error) {
		return t.store.List(ctx, f, after)
	})
}

func (t timedStore) Count(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Count, error) {
	return ask(ctx, t.server, func(ctx context.Context) (dedupstore.Count, error) {
		return t.store.Count(ctx, f, after)
	})
}

func (t timedStore) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	_, err := ask(ctx, t.server, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.store.Change(ctx, seen, c)
	})
	return err
}

func (t timedStore) Scopes(ctx context.Context, tenant, group string) ([]dedupstore.ScopeUse, error) {
	return ask(ctx, t.server, func(ctx context.Context) ([]dedupstore.ScopeUse, error) {
		return t.store.Scopes(ctx, tenant, group)
	})
}

func (t timedStore) Check(ctx context.Context) (dedupstore.Report, error) {
	return ask(ctx, t.server, t.store.Check)
}

// A timedBox gives each question of a command a deadline, as a timedStore does. Replay has none, because it may read
// many rows to find those of a header; nor has Migrate, which may wait for locks.
type timedBox struct {
	box
	server
}

func (t timedBox) List(ctx context.Context, f outbox.Filter, after string) (outbox.Page, error) {
	return ask(ctx, t.server, func(ctx context.Context) (outbox.Page, error) { return t.box.List(ctx, f, after) })
}

func (t timedBox) Count(ctx context.Context, f outbox.Filter, after string) (outbox.Count, error) {
	return ask(ctx, t.server, func(ctx context.Context) (outbox.Count, error) { return t.box.Count(ctx, f, after) })
}

func (t timedBox) Requeue(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	return ask(ctx, t.server, func(ctx context.Context) (int, error) { return t.box.Requeue(ctx, dead...) })
}

func (t timedBox) Discard(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	return ask(ctx, t.server, func(ctx context.Context) (int, error) { return t.box.Discard(ctx, dead...) })
}

func (t timedBox) Plan(ctx context.Context) (dedupstore.Migration, error) {
	return ask(ctx, t.server, t.box.Plan)
}
