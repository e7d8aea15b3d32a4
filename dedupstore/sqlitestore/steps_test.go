package sqlitestore

import (
	"context"
	"testing"

	"github.com/oncemill/oncemill/internal/crowdtest"
)

// A step of an inbox's handler is kept by the leased form of a store, in another file: a rollback forgets nothing.
func TestStepIn_ARollbackForgetsNothing(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	steps, _ := newStore(t)
	newLedger(t, db)
	effect := func(ctx context.Context) error { return charge(ctx, Tx(ctx), "1") }
	crowdtest.StepOutlivesARollback(t, s.Inbox(), steps, effect, func(want int) {
		if n := charges(t, db, "1"); n != want {
			t.Errorf("there are %d effects, want %d", n, want)
		}
	})
}
