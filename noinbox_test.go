package oncemill_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/txctx"
)

// A handler that calls Tx of its store, whose guard was given the store and not its inbox.
func TestGuard_HandlerThatMissesTheInboxWaitsAndCostsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		log := &lines{level: slog.LevelInfo}
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 1, Logger: slog.New(log)})
		for range 20 {
			_, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
				panic(txctx.NoTx("pgstore: Tx outside a run of Store.Inbox"))
			})
			retry := answertest.Want(t, err, oncemill.StatusRetry)
			if !retry.Uncounted || retry.Wait <= 0 ||
				!strings.Contains(err.Error(), "give consumer.New or oncemill.NewGuard store.Inbox()") {
				t.Fatalf("%+v", retry)
			}
			time.Sleep(retry.Wait)
		}
		if len(log.lines) != 1 || log.attrs[0]["level"] != slog.LevelError {
			t.Errorf("lines %q, want one error", log.lines)
		}
		if res, err := g.Run(t.Context(), call("m1"), new(counter).run); err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("once the inbox is there: %+v, %v", res, err)
		}
	})
}

// An outbox returns what a store's Tx panics with. A handler writes there when its effect has happened, so it must not
// run without end.
func TestGuard_HandlerWhoseOutboxMissesTheInboxIsToldOnceAndCounts(t *testing.T) {
	virtual(t, func(t *testing.T) {
		log := &lines{level: slog.LevelError}
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 2, Logger: slog.New(log)})
		charge := func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, fmt.Errorf("publish: %w", txctx.NoTx("the context carries no transaction"))
		}
		_, err := g.Run(t.Context(), call("m1"), charge)
		time.Sleep(answertest.Want(t, err, oncemill.StatusRetry).Wait)
		if res, err := g.Run(t.Context(), call("m1"), charge); err != nil || !res.Outcome.Exhausted {
			t.Errorf("%+v, %v; want a failure", res, err)
		}
		if len(log.lines) != 1 || !strings.Contains(log.lines[0], "its guard has no inbox") {
			t.Errorf("lines %q, want one", log.lines)
		}
	})
}

// The handler may have done something before it asked for the transaction.
func TestGuard_HandlerThatMissesTheInboxIsParkedAtMostOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Irreversible())
		res, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			panic(txctx.NoTx("pgstore: Tx outside a run of Store.Inbox"))
		})
		if err != nil || res.Outcome.Kind != dedupstore.Unknown {
			t.Errorf("%+v, %v; want an unknown outcome", res, err)
		}
	})
}
