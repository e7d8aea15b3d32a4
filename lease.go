package oncemill

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A lease is a claim with its local deadline, until which it certainly holds. The deadline counts on this process's
// monotonic clock, from before the operation that granted or renewed the lease was first sent. So it never ends later
// than the lease does at the store.
type lease struct {
	claim *dedupstore.Claim
	shard *shard

	mu        sync.Mutex
	deadline  time.Time
	renewal   time.Time     // the next is due then
	renewing  int           // renewals that are under way
	sent      time.Time     // when the last of them was
	still     chan struct{} // closed when none is under way; nil: none is
	started   bool          // the handler has been called, or is about to be
	lost      bool          // the store said so
	cancelled bool          // the work was cancelled, because the claim was lost or could not be renewed
	handler   canceler      // the context of the work; nil: there is none
	err       error         // of the last renewal
	work      work

	unrecorded atomic.Bool // there is no record that could be renewed: a first run makes it in its transaction

	kept       bool   // by the heartbeat, whose lock guards this
	prev, next *lease // that it keeps
}

// A canceler is a context that can be cancelled.
type canceler interface{ Cancel(cause error) }

// cancelFunc cancels a context of package context.
type cancelFunc context.CancelCauseFunc

// Cancel calls the function.
func (f cancelFunc) Cancel(cause error) { f(cause) }

// granted sets the lease to the claim that was granted. Sent is when the claim was first sent.
func (l *lease) granted(c *dedupstore.Claim, s *shard, sent time.Time) {
	l.claim, l.shard = c, s
	l.setDeadline(sent, c.Lease)
}

// setDeadline notes that the lease lasts for d from when its claim or renewal was sent.
func (l *lease) setDeadline(sent time.Time, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline, l.renewal = sent.Add(d), sent.Add(d/3)
	l.cancelled = false // the work begins later, or has ended
}

// ends returns the deadline.
func (l *lease) ends() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// idle notes that nothing is done under the lease for now, whatever became of the work before.
func (l *lease) idle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handler, l.cancelled, l.work = nil, false, work{}
}

// extendRetention has the claim extended with this retention, or its own if that is longer.
func (l *lease) extendRetention(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claim.Retention = max(l.claim.Retention, d)
}

// interrupt notes that the work was cancelled for a reason that is not its own.
func (l *lease) interrupt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancelled = true
}

func (l *lease) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started = true
	l.work = work{begins: true}
}

func (l *lease) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

func (l *lease) wasCancelled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cancelled
}

// awaitRenewal returns when no renewal is under way, or when the time of the last one is over. A late renewal would
// undo a shortening of the lease.
func (l *lease) awaitRenewal() {
	l.mu.Lock()
	still, end := l.still, l.sent.Add(operationTimeout(l.claim.Lease))
	l.mu.Unlock()
	if still == nil {
		return
	}
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-still:
	case <-timer.C:
	}
}

// due reports whether to renew the lease now, and whether to cancel its work because the lease cannot be proven to hold
// for much longer. A renewal whose time is over is sent again, although the store has not returned from it.
func (l *lease) due(now time.Time) (renew, cut bool) {
	if l.unrecorded.Load() {
		return false, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if cut = !l.cancelled && now.After(l.deadline.Add(-l.claim.Lease/margin)); cut {
		l.cancelled = true
	}
	ended := l.lost || l.cancelled && l.handler != nil // the handler has been told to end: others may take over
	free := l.renewing == 0 || now.Sub(l.sent) >= operationTimeout(l.claim.Lease)
	if renew = !ended && free && !now.Before(l.renewal); renew {
		if l.renewing++; l.renewing == 1 {
			l.still = make(chan struct{})
		}
		l.sent = now
	}
	return renew, cut
}

// margin: a handler has 1/margin of the lease to notice that it was cancelled.
const margin = 10

// extension is what renews the lease.
func (l *lease) extension(d time.Duration) dedupstore.Extension {
	l.mu.Lock()
	defer l.mu.Unlock()
	return dedupstore.Extension{Claim: *l.claim, Lease: d, Started: l.started}
}

// A heartbeat extends the leases of all claims that a guard holds, together: it looks at them now and then, as long as
// there are any.
type heartbeat struct {
	guard *Guard
	every time.Duration

	mu     sync.Mutex
	leases int
	first  *lease
	timer  *time.Timer
}

func newHeartbeat(g *Guard) *heartbeat {
	every := g.policy.Lease / 24
	if g.policy.MaxRun > 0 {
		every = min(every, g.policy.MaxRun/8)
	}
	return &heartbeat{guard: g, every: every}
}

// add begins to extend a lease.
func (h *heartbeat) add(l *lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.kept {
		return
	}
	l.kept, l.prev, l.next = true, nil, h.first
	if h.first != nil {
		h.first.prev = l
	}
	h.first = l
	if h.leases++; h.leases > 1 {
		return
	}
	if h.timer == nil {
		h.timer = time.AfterFunc(h.every, h.look)
	} else {
		h.timer.Reset(h.every)
	}
}

// remove stops extending a lease. A renewal may still be under way.
func (h *heartbeat) remove(l *lease) {
	l.mu.Lock()
	l.work.begins, l.work.began = false, time.Time{}
	l.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !l.kept {
		return
	}
	if l.prev == nil {
		h.first = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.kept, l.prev, l.next = false, nil, nil
	if h.leases--; h.leases == 0 {
		h.timer.Stop()
	}
}

// look renews the leases that are due, and sees to runs that take long.
func (h *heartbeat) look() {
	now := time.Now()
	var due, cut []*lease
	var long longRuns
	h.mu.Lock()
	for l := h.first; l != nil; l = l.next {
		long.add(l, now, h.guard.policy.MaxRun)
		renew, end := l.due(now)
		if renew {
			due = append(due, l)
		}
		if end {
			cut = append(cut, l)
		}
	}
	if h.leases > 0 {
		h.timer.Reset(h.every)
	}
	h.mu.Unlock()
	long.see(h.guard)
	for _, l := range cut {
		h.guard.cut(l)
	}
	for _, l := range due {
		l.shard.extends.Go(l.extension(l.claim.Lease), &renewal{h.guard, l, now})
	}
}

// A renewal of a lease is under way.
type renewal struct {
	guard *Guard
	lease *lease
	sent  time.Time
}

// Receive takes the store's answer.
func (r *renewal) Receive(err *error) { r.guard.extended(r.lease, r.sent, *err) }

// errUnanswered is why a lease ends that the store did not refuse to renew.
var errUnanswered = errors.New("the store gave no answer before the lease ended")

// cut cancels work whose lease cannot be proven to hold.
func (g *Guard) cut(l *lease) {
	l.mu.Lock()
	renewed, handler, err := !l.cancelled, l.handler, cmp.Or(l.err, errUnanswered)
	l.mu.Unlock()
	if renewed { // meanwhile
		return
	}
	g.log.Error("oncemill: lease could not be renewed",
		"id", l.claim.Key.ID, "key", l.claim.Key.String(), "error", err)
	if handler != nil {
		handler.Cancel(ErrClaimLost)
	}
}

// extended notes the result of a renewal that was sent at a time.
func (g *Guard) extended(l *lease, sent time.Time, err error) {
	l.mu.Lock()
	if l.renewing--; l.renewing == 0 {
		close(l.still)
		l.still = nil
	}
	l.err = err
	var handler canceler
	switch {
	case err == nil && l.deadline.After(sent.Add(l.claim.Lease)): // a later one was answered before
	case err == nil:
		l.deadline, l.renewal = sent.Add(l.claim.Lease), sent.Add(l.claim.Lease/3)
		l.cancelled = l.cancelled && l.handler != nil
	case errors.Is(err, dedupstore.ErrClaimLost):
		l.lost, l.cancelled, handler = true, true, l.handler
	case l.renewing == 0:
		l.renewal = time.Now().Add(l.claim.Lease / 12)
	}
	l.mu.Unlock()
	g.countRenewal(err)
	if took := time.Since(sent); took > l.claim.Lease/6 && g.slow.Due(sayAgain) {
		g.log.Warn("oncemill: the store took long to renew a lease: leases may end while their holders live; look at "+
			"the store, or lengthen Policy.Lease",
			"id", l.claim.Key.ID, "key", l.claim.Key.String(), "took", took, "lease", l.claim.Lease, "error", err)
	}
	if handler != nil {
		handler.Cancel(ErrClaimLost)
	}
}

func (g *Guard) countRenewal(err error) {
	what := telemetry.RenewalError
	switch {
	case err == nil:
		what = telemetry.RenewalOK
	case errors.Is(err, dedupstore.ErrClaimLost):
		what = telemetry.RenewalLost
	}
	g.meter.Renewal(context.Background(), what)
}

// extend renews a lease once, now.
func (g *Guard) extend(ctx context.Context, l *lease, d time.Duration) error {
	sent := time.Now()
	err := *l.shard.extends.Do(ctx, l.extension(d))
	if err == nil {
		l.setDeadline(sent, d)
	} else if errors.Is(err, dedupstore.ErrClaimLost) {
		l.mu.Lock()
		l.lost = true
		l.mu.Unlock()
	}
	g.countRenewal(err)
	return err
}

// renew renews a lease if long waits or lost replies may have used up more than a third of it, and tries until it ends.
// With marked it always renews, so that the store knows whether the handler has started.
func (g *Guard) renew(ctx context.Context, l *lease, marked bool) error {
	if !marked && time.Until(l.ends()) > l.claim.Lease-l.claim.Lease/3 {
		return nil
	}
	extend := func() error { return g.extend(ctx, l, l.claim.Lease) }
	return g.retry(ctx, l, extend(), extend)
}

// unrenewed is the ending of a run whose lease could not be renewed.
func (r *run) unrenewed(ctx context.Context, err error) *ending {
	switch {
	case errors.Is(err, dedupstore.ErrClaimLost):
		return r.lost(ctx, nil)
	case ctx.Err() != nil:
		return r.ends(ending{err: context.Cause(ctx)})
	}
	r.guard.storeFailed(ctx, "extend", err)
	return r.ends(ending{res: storeDown("extend", err)})
}

// beginWork returns a context for work under the lease, which is cancelled when the claim is lost.
func (l *lease) beginWork(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	l.workUnder(cancelFunc(cancel))
	return ctx
}

// workUnder notes the context of the work under the lease, and when that began.
func (l *lease) workUnder(handler canceler) (began time.Time) {
	began = time.Now()
	l.mu.Lock()
	l.handler = handler
	if l.work.begins {
		l.work = work{began: began}
	}
	cut := l.cancelled
	l.mu.Unlock()
	if cut {
		handler.Cancel(ErrClaimLost)
	}
	return began
}

// endWork ends the context of the work. The lease is not extended any more.
func (g *Guard) endWork(l *lease) {
	g.heartbeat.remove(l)
	l.mu.Lock()
	handler := l.handler
	l.mu.Unlock()
	handler.Cancel(nil)
}
