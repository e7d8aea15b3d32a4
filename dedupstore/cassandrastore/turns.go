package cassandrastore

import (
	"context"
	"sync"

	"github.com/oncemill/oncemill/dedupstore"
)

// turns let claims of one key come one after the other: Cassandra takes far longer for transactions that race. The zero
// value is ready to use.
type turns struct {
	mu    sync.Mutex
	ended map[dedupstore.Key]chan struct{} // closed when the claim that is under way has ended
}

// take waits until no other claim of a key is under way.
func (t *turns) take(ctx context.Context, key dedupstore.Key) (end func(), err error) {
	mine := make(chan struct{})
	for {
		t.mu.Lock()
		other := t.ended[key]
		if other == nil {
			if t.ended == nil {
				t.ended = map[dedupstore.Key]chan struct{}{}
			}
			t.ended[key] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.ended, key)
				t.mu.Unlock()
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
