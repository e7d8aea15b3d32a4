package natskv

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// A step of an inbox's handler is kept by a store over a bucket: what the run published is rolled back without it.
func TestStepIn_ARollbackForgetsNothing(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	in := newInbox(t, js, Stream("ORDERS", 1, "orders.>"))
	guard := func(s dedupstore.Store) *oncemill.Guard {
		g, err := oncemill.NewGuard(s, oncemill.Policy{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	inbox, leased := guard(in), guard(newStore(t, js, Bucket("oncemill", 1)))
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
					err = in.Publish(ctx, message("charged-1", "orders.charged"))
				}
				if attempt == 0 {
					err = errors.Join(err, oncemill.RetryAfter(0, errors.New("rolled back")))
				}
				return n, err
			})
		if (err == nil) != (attempt == 1) || attempt == 1 && got != 7 || charged != 1 {
			t.Errorf("attempt %d: %d, %v; charged %d times", attempt, got, err, charged)
		}
		if attempt == 0 {
			wantStored(t, in)
		} else {
			wantStored(t, in, "orders.charged")
		}
	}
}
