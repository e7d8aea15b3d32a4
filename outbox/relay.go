package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/producer"
)

// A Relay publishes the rows of a Store. It is safe for concurrent use. Several relays on one store share the work.
type Relay struct {
	store     Store
	publisher producer.Publisher
	cfg       Config
	log       *slog.Logger
	wake      chan struct{}
	woken     <-chan struct{} // the store's own signal; nil if it has none
	running   atomic.Bool
}

// NewRelay returns a relay; Run makes it work. The publisher must be synchronous: what it does not report as failed
// has been acknowledged by the broker. The error names the field of the config that is wrong.
func NewRelay(store Store, publisher producer.Publisher, cfg Config) (*Relay, error) {
	switch {
	case store == nil:
		return nil, &InvalidError{"store", "is nil"}
	case publisher == nil:
		return nil, &InvalidError{"publisher", "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Relay{store: store, publisher: publisher, cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1)}
	if w, ok := store.(Waker); ok {
		r.woken = w.Woken()
	}
	return r, nil
}

// Wake makes the relay look at the store now instead of at the next poll. Call it after a commit. It never blocks;
// several calls may be one look.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // a signal is waiting already, and the look that it causes is still to come
	}
}

const (
	shortestPoll  = 10 * time.Millisecond
	shortestFault = 100 * time.Millisecond
	longestFault  = 10 * time.Second
)

// Run publishes until ctx ends, and then stops cleanly: it waits at most StopTimeout for the batch that is being
// published, marks what was acknowledged, gives back the rest, and returns nil. A publisher that does not obey its
// context makes it wait longer.
//
// Errors of the store and of the publisher are logged, and tried again for as long as Run runs. The only error that it
// returns is for a relay that is running already.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("outbox: relay is running already")
	}
	defer r.running.Store(false)

	idle := pace{shortest: min(shortestPoll, r.cfg.PollInterval), longest: r.cfg.PollInterval}
	faults := pace{shortest: shortestFault, longest: longestFault}
	cleaner := r.newCleaner()
	for ctx.Err() == nil {
		b, err := r.batch(ctx)
		if err != nil {
			r.fault(ctx, "store failed", err)
			sleep(ctx, jitter(faults.next()))
			continue
		}
		faults.reset()
		cleaner.clean(ctx)
		switch {
		case b.rows == 0:
			r.pause(ctx, idle.next())
		case b.acknowledged == 0: // the broker may be away: wakes must not turn that into a storm
			sleep(ctx, jitter(idle.next()))
		case b.rows < r.cfg.BatchSize:
			idle.reset()
			r.pause(ctx, idle.next())
		default: // there is probably more
			idle.reset()
		}
	}
	return nil
}

// pause waits for d, or until somebody wakes the relay, or until ctx ends.
func (r *Relay) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.wake:
	case <-r.woken:
	case <-ctx.Done():
	}
}

// fault logs an error of the store, unless it is the relay's own stop.
func (r *Relay) fault(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		r.log.WarnContext(ctx, "outbox: "+what+", will try again", "error", err)
	}
}

// A batch is what became of one lease.
type batch struct{ rows, acknowledged int }

// batch leases rows, publishes them and settles. Its error is the store's.
func (r *Relay) batch(ctx context.Context) (batch, error) {
	l, err := r.lease(ctx)
	if err != nil {
		return batch{}, fmt.Errorf("lease rows: %w", err)
	}
	if len(l.rows) == 0 {
		return batch{}, nil
	}
	results := r.publish(ctx, l.rows)
	if err := r.settle(ctx, l, results); err != nil {
		return batch{}, fmt.Errorf("settle %d rows, some may be published again: %w", len(l.rows), err)
	}
	b := batch{rows: len(l.rows)}
	for _, result := range results {
		if result.State == Published || result.State == Removed {
			b.acknowledged++
		}
	}
	return b, nil
}
