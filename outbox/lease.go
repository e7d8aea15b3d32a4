package outbox

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/pace"
)

// A lease is a batch of rows that other relays do not touch.
type lease struct {
	token string
	rows  []Row
	until time.Time // certainly not after its end at the store: measured from before it was asked for
}

func (r *Relay) lease(ctx context.Context, from loop) (lease, error) {
	l := lease{token: ids.Token(), until: time.Now().Add(r.cfg.Lease)}
	// A stop does not cut this short: rows that the server leases after the caller has gone would stay leased.
	bounded, release := outlive(ctx, r.cfg.storeTimeout(), giveBackTimeout)
	defer release()
	var err error
	l.rows, err = r.store.Lease(bounded, LeaseRequest{Token: l.token, Limit: from.limit, Lease: r.cfg.Lease,
		Suspects: from.suspects})
	if err != nil && from.stuck && ctx.Err() == nil {
		// Perhaps the row is too large to be read in time, or damaged. If it were given back, it would be first again,
		// for ever.
		return lease{}, err
	}
	if err != nil || ctx.Err() != nil && len(l.rows) > 0 {
		r.giveBack(ctx, l.token)
		return lease{}, err
	}
	return l, nil
}

// giveBackTimeout is short, because the store has just shown that it is in trouble, and the relay may be stopping.
const giveBackTimeout = time.Second

// giveBack returns rows that the store may have leased although it returned an error. If that fails too, they wait
// until the lease ends.
func (r *Relay) giveBack(ctx context.Context, token string) {
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(giveBackTimeout, r.cfg.storeTimeout()))
	defer cancel()
	if err := r.store.Settle(detached, token, nil); err != nil {
		r.log.DebugContext(ctx, "outbox: leased rows could not be given back", "error", err)
	}
}

// settle records results until the store accepts them or the lease ends. After the end of ctx it tries for the store's
// timeout only, but at least once.
func (r *Relay) settle(ctx context.Context, l lease, results []Result) error {
	limit := max(time.Until(l.until), r.cfg.storeTimeout())
	detached, release := outlive(ctx, limit, r.cfg.storeTimeout())
	defer release()
	faults := pace.Pace{Shortest: shortestFault, Longest: longestFault}
	for {
		err := r.settleOnce(detached, l.token, results)
		if err == nil {
			return nil
		}
		line := "outbox: results could not be recorded yet"
		if r.news.Is(line, err.Error()) {
			r.log.WarnContext(ctx, line, "rows", len(l.rows), "error", err)
		}
		if !pace.Sleep(detached, pace.Jitter(faults.Next())) {
			return err
		}
	}
}

func (r *Relay) settleOnce(ctx context.Context, token string, results []Result) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.storeTimeout())
	defer cancel()
	return r.store.Settle(ctx, token, results)
}

// outlive returns a context that ends after limit, or grace after ctx ended, whichever comes first. The caller must
// call its second result.
func outlive(ctx context.Context, limit, grace time.Duration) (outlived context.Context, release func()) {
	outlived, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return outlived, func() { stop(); cancel() }
}
