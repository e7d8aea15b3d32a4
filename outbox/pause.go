package outbox

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

// outlive returns a context that ends after limit, or grace after ctx ended, whichever comes first. The caller must
// call its second result.
func outlive(ctx context.Context, limit, grace time.Duration) (outlived context.Context, release func()) {
	outlived, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		if pace.Sleep(outlived, grace) {
			cancel()
		}
	})
	return outlived, func() {
		cancel()
		if !stop() {
			<-ended
		}
	}
}
