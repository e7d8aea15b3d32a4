package oncemill

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A holding is a claim together with the time until which it certainly holds: the local deadline. It is measured by
// this process's monotonic clock from before the operation was first sent that granted or renewed the lease, so it
// never ends later than the lease does at the store.
type holding struct {
	claim    dedupstore.Claim
	mu       sync.Mutex
	deadline time.Time
	lost     bool // the store said so
	isCut    bool // the work was cancelled, because the claim was lost or could not be renewed
}

func (h *holding) until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deadline
}

func (h *holding) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isCut = true
}

func (h *holding) wasCut() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.isCut
}

func (h *holding) isLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

// extend renews the lease once. It returns dedupstore.ErrClaimLost if the claim is certainly lost.
func (g *Guard) extend(ctx context.Context, h *holding, lease time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, g.patience.timeout)
	defer cancel()
	sent := time.Now()
	err := dedupstore.ExtendOne(ctx, g.store, dedupstore.Extension{Claim: h.claim, Lease: lease, Started: true})
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.deadline = sent.Add(lease)
		g.meter.Renewal(ctx, telemetry.RenewalOK)
	case claimLost(ctx, err):
		h.lost = true
		g.meter.Renewal(ctx, telemetry.RenewalLost)
	case !errors.Is(ctx.Err(), context.Canceled): // else the work ended while a renewal was under way
		g.meter.Renewal(ctx, telemetry.RenewalError)
	}
	return err
}

// claimLost tells an answer of the store from the end of a context that has ended because another claim is lost, in
// whose handler this is: some stores return its cause.
func claimLost(ctx context.Context, err error) bool {
	return errors.Is(err, dedupstore.ErrClaimLost) && !errors.Is(context.Cause(ctx), dedupstore.ErrClaimLost)
}

// A heartbeat is the loop that extends a lease while somebody works under it. Most work is over before the first beat
// is due: until then it is a timer. Its goroutine ends in stop, or when the claim is lost.
type heartbeat struct {
	first *time.Timer // begins the loop
	loop  sync.WaitGroup

	mu      sync.Mutex
	cancel  context.CancelFunc // of the loop; nil before it begins
	stopped bool
}

// beat starts a heartbeat. It outlives the cancellation of ctx: a handler that finishes during shutdown keeps its
// lease. lost is called when the claim is lost, which ends the heartbeat, or cannot be proven to hold any more, and
// says whether to go on trying then. It may be called more than once.
func (g *Guard) beat(ctx context.Context, h *holding, lost func() (goOn bool)) *heartbeat {
	hb := &heartbeat{}
	hb.loop.Add(1)
	hb.first = time.AfterFunc(h.claim.Lease/3, func() {
		defer hb.loop.Done()
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		if hb.begin(cancel) {
			g.keep(ctx, h, lost)
		}
	})
	return hb
}

// keep extends the lease, for the first time at once.
func (g *Guard) keep(ctx context.Context, h *holding, lost func() (goOn bool)) {
	lease := h.claim.Lease
	margin := lease / 10 // what remains for a handler to notice that it was cancelled
	for pause := time.Duration(0); pause == 0 || sleep(ctx, pause); {
		overdue := g.overdue(h, margin/2, lost)
		err := g.extendBefore(ctx, h, h.until().Add(-margin))
		overdue.Stop()
		switch {
		case err == nil:
			pause = lease / 3
			continue
		case ctx.Err() != nil:
			return
		case errors.Is(err, dedupstore.ErrClaimLost):
			lost()
			return
		}
		pause = lease / 12
		if time.Now().Add(pause + margin).After(h.until()) {
			g.log.ErrorContext(ctx, "oncemill: lease could not be renewed",
				"id", h.claim.Key.ID, "key", h.claim.Key.String(), "error", err)
			if !lost() {
				return
			}
			pause = lease / 3
		}
	}
}

// overdue calls lost when a renewal has not returned shortly before the lease ends: a store need not heed contexts. One
// that begins too late for that has as long as any operation.
func (g *Guard) overdue(h *holding, margin time.Duration, lost func() bool) *time.Timer {
	left := time.Until(h.until().Add(-margin))
	if left <= 0 {
		left = g.patience.timeout
	}
	return time.AfterFunc(left, func() { lost() })
}

// begin reports false if the heartbeat was stopped before its loop began.
func (hb *heartbeat) begin(cancel context.CancelFunc) bool {
	hb.mu.Lock()
	defer hb.mu.Unlock()
	hb.cancel = cancel
	return !hb.stopped
}

// stop ends the heartbeat and waits for its end. Nil: there is none.
func (hb *heartbeat) stop() {
	if hb == nil || hb.first.Stop() {
		return
	}
	hb.mu.Lock()
	hb.stopped = true
	if hb.cancel != nil {
		hb.cancel()
	}
	hb.mu.Unlock()
	hb.loop.Wait()
}

// extendBefore renews the lease, and gives up at a time, unless that has passed already. Nobody else could recover from
// a panic.
func (g *Guard) extendBefore(ctx context.Context, h *holding, limit time.Time) (err error) {
	defer calm(&err)
	if limit.After(time.Now()) {
		var done context.CancelFunc
		ctx, done = context.WithDeadline(ctx, limit)
		defer done()
	}
	return g.extend(ctx, h, h.claim.Lease)
}

// calm is deferred to make an error of a panic in the store's client, as in a hook.
func calm(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("the store panicked: %v\n%s", v, debug.Stack())
	}
}

// sleep waits for d, and reports false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool { return sleepUntil(ctx, d, nil) }
