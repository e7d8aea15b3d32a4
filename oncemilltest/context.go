package oncemilltest

import (
	"cmp"
	"context"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// Context returns a context with a run, as handlers get it: oncemill.FromContext returns the run. What is zero in it is
// filled in, so that the zero Run is the first one of a message. The context has no transaction, and no store knows the
// run: for these see [Case.Once].
func Context(ctx context.Context, run oncemill.Run) context.Context {
	k := run.Key
	return txctx.With(ctx, &dedupstore.Claim{
		Key: dedupstore.Key{
			Tenant:  cmp.Or(k.Tenant, "default"),
			Group:   cmp.Or(k.Group, "test"),
			Handler: cmp.Or(k.Handler, "handler"),
			ID:      cmp.Or(k.ID, "message"),
		},
		Fence:   cmp.Or(run.Fence, 1),
		Attempt: cmp.Or(run.Attempt, 1),
	})
}
