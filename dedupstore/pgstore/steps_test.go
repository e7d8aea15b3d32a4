package pgstore

import (
	"context"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/crowdtest"
)

// A step of an inbox's handler is kept by the leased form of the store: a rollback forgets nothing.
func TestStepIn_ARollbackForgetsNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	write := func(ctx context.Context) error {
		return effect(ctx, dedupstore.Claim{Key: oncemill.FromContext(ctx).Key})
	}
	crowdtest.StepOutlivesARollback(t, s.Inbox(), s, write, func(want int) { wantEffects(t, pool, "1", want) })
}
