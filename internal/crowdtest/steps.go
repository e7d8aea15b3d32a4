package crowdtest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
)

// StepOutlivesARollback wants a step that a leased store keeps to outlive the rollback of the inbox's handler around
// it, whose effect does not. Effects is told which effects there must be. Step itself is an error there.
func StepOutlivesARollback(t *testing.T, inbox, leased dedupstore.Store, effect func(context.Context) error,
	effects func(want int)) {
	t.Helper()
	guard := func(s dedupstore.Store) *oncemill.Guard {
		g, err := oncemill.NewGuard(s, oncemill.Policy{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.Close)
		return g
	}
	outer, steps := guard(inbox), guard(leased)
	charged := 0
	charge := func(context.Context) (int, error) { charged++; return 7, nil } //nolint:unparam // a step
	_, err := oncemill.Do(t.Context(), outer, oncemill.Call{Key: claimtest.Key("plain")},
		func(ctx context.Context) (int, error) { return oncemill.Step(ctx, "charge", charge) })
	if err == nil || !strings.Contains(err.Error(), "StepIn(ctx, guard") || charged != 0 {
		t.Errorf("Step in an inbox: %v; charged %d times", err, charged)
	}
	for attempt := range 2 {
		got, err := oncemill.Do(t.Context(), outer, oncemill.Call{Key: claimtest.Key("1")},
			func(ctx context.Context) (int, error) {
				n, err := oncemill.StepIn(ctx, steps, "charge", charge)
				if err == nil {
					err = effect(ctx)
				}
				if attempt == 0 {
					err = errors.Join(err, oncemill.RetryAfter(0, errors.New("rolled back")))
				}
				return n, err
			})
		if (err == nil) != (attempt == 1) || attempt == 1 && got != 7 || charged != 1 {
			t.Errorf("attempt %d: %d, %v; charged %d times", attempt, got, err, charged)
		}
		effects(attempt)
	}
}
