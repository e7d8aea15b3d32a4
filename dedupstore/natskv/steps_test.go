package natskv

import (
	"context"
	"testing"

	"github.com/oncemill/oncemill/internal/crowdtest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// A step of an inbox's handler is kept by a store over a bucket: what the run published is rolled back without it.
func TestStepIn_ARollbackForgetsNothing(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	in := newInbox(t, js, Stream("ORDERS", 1, "orders.>"))
	publish := func(ctx context.Context) error { return in.Publish(ctx, message("charged-1", "orders.charged")) }
	crowdtest.StepOutlivesARollback(t, in, newStore(t, js, Bucket("oncemill", 1)), publish, func(want int) {
		wantStored(t, in, []string{"orders.charged"}[:want]...)
	})
}
