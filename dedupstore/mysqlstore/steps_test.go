package mysqlstore

import (
	"context"
	"testing"

	"github.com/oncemill/oncemill/internal/crowdtest"
)

// A step of an inbox's handler is kept by the leased form of the store: a rollback forgets nothing.
func TestStepIn_ARollbackForgetsNothing(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	write := func(ctx context.Context) error { return effect(ctx, "1") }
	crowdtest.StepOutlivesARollback(t, s.Inbox(), s, write, func(want int) { wantEffects(t, db, "1", want) })
}
