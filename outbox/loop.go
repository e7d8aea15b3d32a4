package outbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/pace"
)

// A loop is one goroutine of a relay: it leases rows of one kind, publishes and settles them, one batch after another.
// Suspects, the rows that got no answer before, have their own loops, so that a row that hangs again holds up no
// others.
type loop struct {
	suspects    bool
	limit       int               // rows of a batch
	stuck       bool              // the last batch failed, although it was of one row
	wake, woken <-chan struct{}   // end a pause; nil: nothing does
	follows     <-chan struct{}   // it does not look at times, but when it receives; nil: it looks at times
	lags        func() bool       // the loop that it follows waits for the store, and has for long
	cleaner     *outgoing.Cleaner // nil: another loop cleans
}

const (
	suspectLoops = 4
	suspectBatch = 8 // so that a relay makes at most 32 calls of the publisher for suspects side by side

	followers  = 2
	publishing = 2  // batches: more that share a slow broker would take too long, each of them
	firstBatch = 64 // rows that say, soon, that there are more
)

// healthy is the loop for rows that have no unknown attempt: new ones, and those that were refused.
func (r *Relay) healthy() loop {
	return loop{limit: r.cfg.BatchSize, wake: r.wake, woken: r.woken, cleaner: r.newCleaner()}
}

// follower is another loop for the same rows. When a batch is full, the follower reads the next one while the first
// waits for its acknowledgements. If it was not known that they would come, it waits until the first is being recorded.
// With two followers, one batch is read while one is published and one is recorded. While the first loop waits for an
// answer of the store that does not come, followers do its work.
func (r *Relay) follower() loop { return loop{limit: r.cfg.BatchSize, follows: r.more, lags: r.lags} }

// ask has the store do something for a loop, and notes it for the followers.
func (r *Relay) ask(l loop, do func()) {
	if l.cleaner == nil { // nobody follows it
		do()
		return
	}
	now := time.Now()
	r.asked.Store(&now)
	defer r.asked.Store(nil)
	do()
}

func (r *Relay) lags() bool {
	asked := r.asked.Load()
	return asked != nil && time.Since(*asked) >= longAnswer
}

// suspects is a loop that nobody wakes: a new row is never a suspect.
func (r *Relay) suspects() loop {
	return loop{suspects: true, limit: min(suspectBatch, r.cfg.BatchSize)}
}

const (
	shortestPoll = 10 * time.Millisecond
	// after several rows, wakes end a pause only then: a look costs writers more than a row
	gatherPerRow  = 250 * time.Microsecond
	longestGather = 5 * time.Millisecond
	shortestFault = 100 * time.Millisecond
	longestFault  = 10 * time.Second
	longAnswer    = time.Second // of the store: from then on, and as often, followers look
)

// work runs one loop until ctx ends.
func (r *Relay) work(ctx context.Context, l loop) {
	idle := pace.Pace{Shortest: min(shortestPoll, r.cfg.PollInterval), Longest: r.cfg.PollInterval}
	faults := pace.Pace{Shortest: shortestFault, Longest: longestFault}
	switch {
	case l.follows != nil:
		l.pause(ctx, 0)
	case l.suspects: // what is healthy goes first
		l.pause(ctx, idle.Shortest)
	}
	most := l.limit
	flowing := false          // the broker acknowledged the batch before
	first := l.follows == nil // there was nothing before
	for ctx.Err() == nil {
		asked := l
		if first { // the rest does not wait for it: one of its rows may get no answer
			asked.limit = min(firstBatch, l.limit)
		}
		b, err := r.batch(ctx, asked, flowing || asked.limit < l.limit)
		if err != nil {
			r.fault(ctx, "outbox: store failed", err)
			l.stuck = asked.limit == 1
			l.limit = max(1, asked.limit/2) // rows that are too large to be read in time together would be so for ever
			pace.Sleep(ctx, pace.Jitter(faults.Next()))
			continue
		}
		faults.Reset()
		l.stuck = false
		flowing = b.acknowledged > 0
		first = b.rows == 0 && l.follows == nil
		if l.cleaner != nil {
			r.ask(l, func() { l.cleaner.Clean(ctx) })
		}
		switch {
		case b.rows == 0:
			l.pause(ctx, idle.Next())
		case !flowing && l.follows != nil:
			l.pause(ctx, 0)
		case !flowing: // the broker may be away: wakes must not turn that into a storm
			pace.Sleep(ctx, pace.Jitter(idle.Next()))
		case b.rows < asked.limit && b.left == 0:
			idle.Reset()
			rest := idle.Next()
			gather := min(time.Duration(b.rows-1)*gatherPerRow, longestGather, rest)
			pace.Sleep(ctx, gather)
			l.pause(ctx, rest-gather)
		default: // there is probably more
			idle.Reset()
		}
		l.limit = min(most, l.limit+1+l.limit/8)
	}
}

// pause waits for d, or until somebody wakes the loop, or until ctx ends. A follower waits for its signal, or until the
// loop that it follows lags.
func (l loop) pause(ctx context.Context, d time.Duration) {
	if l.follows != nil {
		look := time.NewTicker(longAnswer)
		defer look.Stop()
		for {
			select {
			case <-l.follows:
				return
			case <-look.C:
				if l.lags() {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.wake:
	case <-l.woken:
	case <-ctx.Done():
	}
}

// fault logs an error of the store, unless the relay's own stop caused it. All loops meet the same fault again and
// again, so the log does not repeat it for a while.
func (r *Relay) fault(ctx context.Context, what string, err error) {
	if ctx.Err() == nil && r.news.Is(what, err.Error()) {
		r.log.WarnContext(ctx, what+", will try again", "error", err)
	}
}

// A batch is what became of one lease. Rows that were not published are left.
type batch struct{ rows, acknowledged, left int }

// batch leases rows, publishes them and settles. Its error is the store's. A full batch calls the follower: before it
// is published, if early is set, else before it is settled, if some of it was acknowledged.
func (r *Relay) batch(ctx context.Context, from loop, early bool) (batch, error) {
	sent := func() {}
	if !from.suspects {
		select {
		case r.sending <- struct{}{}:
			sent = sync.OnceFunc(func() { <-r.sending })
			defer sent()
		case <-ctx.Done():
			return batch{}, nil
		}
	}
	var l lease
	var err error
	r.ask(from, func() { l, err = r.lease(ctx, from) })
	if err != nil {
		return batch{}, fmt.Errorf("lease rows: %w", err)
	}
	if len(l.rows) == 0 {
		return batch{}, nil
	}
	full := len(l.rows) == from.limit && !from.suspects
	if full && early {
		signal(r.more)
	}
	r.telemetry.Leased(ctx, len(l.rows))
	results := r.publish(ctx, l.rows, from.suspects)
	sent()
	b := batch{rows: len(l.rows), left: len(l.rows) - len(results)}
	for _, result := range results {
		if result.State == Published || result.State == Removed {
			b.acknowledged++
		}
	}
	if full && !early && b.acknowledged > 0 {
		signal(r.more)
	}
	if r.ask(from, func() { err = r.settle(ctx, l, results) }); err != nil {
		return batch{}, fmt.Errorf("settle %d rows, some may be published again: %w", len(l.rows), err)
	}
	for _, result := range results {
		if result.State == Dead { // only now that it is recorded: before, the row could come again
			i := slices.IndexFunc(l.rows, func(row Row) bool { return row.Number == result.Number })
			r.telemetry.Died(ctx, l.rows[i].Message.Topic)
		}
	}
	return b, nil
}
