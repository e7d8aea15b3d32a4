package pgstore

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/jackc/pgx/v5/pgxpool"
)

// slots bound how many transactions of a pool's inboxes are open at once. Claims, heartbeats and settlements need
// connections too, or every lease would end while its holder waits for one.
type slots chan struct{}

// pools has the slots of each pool, by weak.Pointer[pgxpool.Pool]. Several stores may share a pool, such as one for
// each schema, and each knows only its own runs.
var pools sync.Map

// A share is what the stores of a pool have in common.
type share struct {
	slots slots
	left  atomic.Int64 // when a server that only reads was left, in nanoseconds of the Unix era

	waiting atomic.Int32 // runs, for a slot
	warned  atomic.Bool  // that too many did
}

// longWait is longer than a run waits for a slot where the pool suits what is in flight.
const longWait = time.Second

// take is slots.take. It warns once of a pool that is too small for what is in flight.
func (s *share) take(ctx context.Context, log *slog.Logger) (free func(), err error) {
	began := time.Now()
	s.waiting.Add(1)
	free, err = s.slots.take(ctx)
	waiting := 1 + int(s.waiting.Add(-1)) // with this one
	if waiting > cap(s.slots) && time.Since(began) > longWait && s.warned.CompareAndSwap(false, true) {
		log.WarnContext(ctx, "pgstore: more runs wait for a connection than handlers can have: raise pool_max_conns, "+
			"or lower MaxInFlight to three quarters of it", "waiting", waiting, "handlers_at_once", cap(s.slots))
	}
	return free, err
}

// leastConns is how many connections a store needs: one for a handler, one for its heartbeats.
const leastConns = 2

func shareOf(pool *pgxpool.Pool) *share {
	most := int(pool.Config().MaxConns)
	key := weak.Make(pool)
	known, found := pools.LoadOrStore(key, &share{slots: make(slots, max(1, most-max(1, most/4)))})
	if !found {
		runtime.AddCleanup(pool, func(key weak.Pointer[pgxpool.Pool]) { pools.Delete(key) }, key)
	}
	return known.(*share)
}

// A holder is the key of a context's value: the slots that a running handler has for runs inside itself.
type holder struct{ slots }

// take returns a function that frees the slot. When handlers have all slots, each may wait for a run inside itself, so
// each has one more for that. It has only one, because a handler may begin many at once.
func (s slots) take(ctx context.Context) (free func(), err error) {
	within, _ := ctx.Value(holder{s}).(slots) // nil outside of a handler
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case within <- struct{}{}:
		return func() { <-within }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// taken returns the context of a handler that has a slot.
func (s slots) taken(ctx context.Context) context.Context {
	return context.WithValue(ctx, holder{s}, make(slots, 1))
}

// owners remembers the tokens of some claims. It may forget: the store asks for what it does not know.
type owners struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// mostOwners bounds how many claims are remembered that nobody settles.
const mostOwners = 1 << 14

func (o *owners) add(owner string, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.until == nil || len(o.until) >= mostOwners {
		o.until = make(map[string]time.Time)
	}
	o.until[owner] = until
}

func (o *owners) has(owner string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.until[owner]
	return ok
}

// take forgets an owner, and returns until when what was known of it holds; zero if nothing was.
func (o *owners) take(owner string) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	until, ok := o.until[owner]
	if ok {
		delete(o.until, owner)
	}
	return until
}
