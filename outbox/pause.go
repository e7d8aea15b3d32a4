package outbox

import (
	"context"
	"time"
)

// outlive returns a context that ends after limit, or grace after ctx ended, whichever comes first. The caller must
// call its second result.
func outlive(ctx context.Context, limit, grace time.Duration) (outlived context.Context, release func()) {
	outlived, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return outlived, func() { stop(); cancel() }
}
