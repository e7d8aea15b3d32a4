package sqlitestore

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// A step of an inbox's handler is kept by the leased form of a store, in another file: a rollback forgets nothing.
func TestStepIn_ARollbackForgetsNothing(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	steps, _ := newStore(t)
	newLedger(t, db)
	guard := func(s dedupstore.Store) *oncemill.Guard {
		g, err := oncemill.NewGuard(s, oncemill.Policy{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	inbox, leased := guard(s.Inbox()), guard(steps)
	charged := 0
	take := func(context.Context) (int, error) { charged++; return 7, nil }
	_, err := oncemill.Do(t.Context(), inbox, oncemill.Call{Key: request("plain").Key},
		func(ctx context.Context) (int, error) { return oncemill.Step(ctx, "charge", take) })
	if err == nil || !strings.Contains(err.Error(), "StepIn(ctx, guard") || charged != 0 {
		t.Errorf("Step in an inbox: %v; charged %d times", err, charged)
	}
	for attempt := range 2 {
		got, err := oncemill.Do(t.Context(), inbox, oncemill.Call{Key: request("1").Key},
			func(ctx context.Context) (int, error) {
				n, err := oncemill.StepIn(ctx, leased, "charge", take)
				if err == nil {
					err = charge(ctx, Tx(ctx), "1")
				}
				if attempt == 0 {
					err = errors.Join(err, oncemill.RetryAfter(0, errors.New("rolled back")))
				}
				return n, err
			})
		if (err == nil) != (attempt == 1) || attempt == 1 && got != 7 || charged != 1 {
			t.Errorf("attempt %d: %d, %v; charged %d times", attempt, got, err, charged)
		}
		if n := charges(t, db, "1"); n != attempt {
			t.Errorf("after attempt %d there are %d effects", attempt, n)
		}
	}
}
