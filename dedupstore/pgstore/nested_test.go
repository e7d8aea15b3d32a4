package pgstore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// Handlers have all the places of a pool, and each runs another store of the pool inside itself. Such a run must not
// wait for a place that only the end of a handler frees.
func TestInbox_RunInAHandlerNeedsNoPlaceOfItsOwn(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(c *pgxpool.Config) { c.MaxConns = 4 })
	guardOf := func(table string) *oncemill.Guard {
		g, err := oncemill.NewGuard(newStore(t, pool, Config{Table: table}).Inbox(),
			oncemill.Policy{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	outer, inner := guardOf("outer"), guardOf("inner")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var begun, all sync.WaitGroup
	begun.Add(3) // as many as there are places
	for i := range 3 {
		all.Go(func() {
			_, err := outer.Run(ctx, callOf(fmt.Sprint(i)), func(ctx context.Context) (dedupstore.Outcome, error) {
				begun.Done()
				begun.Wait()
				_, err := inner.Run(ctx, callOf(fmt.Sprint(i)), func(context.Context) (dedupstore.Outcome, error) {
					return dedupstore.Outcome{}, nil
				})
				return dedupstore.Outcome{}, err
			})
			if err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// A run under a leased claim, in the handler of an inbox, must not write in the inbox's transaction: if that is rolled
// back, the run's outcome stays, and what it wrote is lost.
func TestInbox_LeasedRunInAHandlerHasNoTransaction(t *testing.T) {
	t.Parallel()
	store := newStore(t, newPool(t), Config{})
	policy := oncemill.Policy{Logger: slog.New(slog.DiscardHandler)}
	outer, err := oncemill.NewGuard(store.Inbox(), policy)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := oncemill.NewGuard(store, policy)
	if err != nil {
		t.Fatal(err)
	}
	joins := func(ctx context.Context) (joined bool) {
		defer func() { joined = recover() == nil }()
		Tx(ctx)
		return
	}
	_, err = outer.Run(t.Context(), callOf("outer"), func(ctx context.Context) (dedupstore.Outcome, error) {
		if !joins(ctx) {
			t.Error("the inbox has no transaction")
		}
		_, err := inner.Run(ctx, callOf("inner"), func(ctx context.Context) (dedupstore.Outcome, error) {
			if joins(ctx) {
				t.Error("a leased run has the transaction of the inbox around it")
			}
			return dedupstore.Outcome{}, nil
		})
		return dedupstore.Outcome{}, err
	})
	if err != nil {
		t.Error(err)
	}
}

// A handler that has many runs in itself at once, longer than a lease.
func TestInbox_ManyRunsInAHandlerLeaveHeartbeatsAConnection(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(c *pgxpool.Config) { c.MaxConns = 8 })
	guardOf := func(table string) *oncemill.Guard {
		p := oncemill.Policy{Lease: 6 * time.Second, MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler)}
		g, err := oncemill.NewGuard(newStore(t, pool, Config{Table: table}).Inbox(), p)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	outer, inner := guardOf("outer"), guardOf("inner")
	taken := func(id string) oncemill.Call {
		call := callOf(id)
		call.MaxWait = time.Minute
		return call
	}
	_, err := outer.Run(t.Context(), taken("all"), func(ctx context.Context) (dedupstore.Outcome, error) {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				res, err := inner.Run(ctx, taken(fmt.Sprint(i)), func(ctx context.Context) (dedupstore.Outcome, error) {
					lasts(7 * time.Second)
					return dedupstore.Outcome{}, context.Cause(ctx)
				})
				if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
					t.Errorf("run %d ended with %+v, %v", i, res.Outcome, err)
				}
			})
		}
		all.Wait()
		return dedupstore.Outcome{}, context.Cause(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}
