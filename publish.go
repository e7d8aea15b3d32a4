package oncemill

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// publishStored publishes what an outcome holds that was sent to the store at a time. The publish step has a lease of
// its own.
func (t *Ticket) publishStored(ctx context.Context, res Result, sent time.Time) (Result, error) {
	g, l := t.guard, &t.lease
	if len(res.Outcome.Produced) == 0 {
		return res, nil
	}
	l.until(sent, l.claim.Lease)
	if err := g.renew(ctx, l, false); errors.Is(err, ErrClaimLost) {
		return Result{}, err
	} else if err != nil {
		return Result{}, &UnpublishedError{Delay: l.claim.Lease, Err: err}
	}
	return t.publish(ctx, res)
}

// publish does the publish step of an outcome, so that copies do not publish side by side.
func (t *Ticket) publish(ctx context.Context, res Result) (Result, error) {
	g, l := t.guard, &t.lease
	if res.Outcome.Kind != dedupstore.Succeeded && len(res.Outcome.Produced) == 0 && t.call.DeadLetter != nil {
		// the claim itself ended the run, or the letter was too large for the record
		res.Outcome.Produced = g.deadLetter(ctx, t.call, res.Outcome, l.claim.Attempt, res.Fence)
	}
	return t.publishThen(ctx, res, dedupstore.Published{
		Retention: g.window(t.call, res.Outcome), Produced: dedupstore.Stubs(res.Outcome.Produced),
	})
}

// publishFirst publishes outputs that are too large for the record while the run still holds its claim, and finishes
// then. A crash in between runs the handler again.
func (t *Ticket) publishFirst(ctx context.Context, res Result, finish dedupstore.Finish) (Result, error) {
	g, key := t.guard, &t.call.Key
	g.meter.Oversize(ctx, key.Group, key.Handler)
	g.log.WarnContext(ctx, "oncemill: produced messages are too large to be stored; a crash before they are "+
		"published runs the handler again",
		"id", key.ID, "key", key.String(), "bytes", size(finish.Outcome.Produced), "limit", g.policy.MaxProducedBytes)
	return t.publishUnstored(ctx, res, finish)
}

// publishUnstored publishes outputs that no record holds, and finishes then. It publishes nothing when the lease cannot
// be proven to hold: another owner may be publishing by then, and the message comes again anyway.
func (t *Ticket) publishUnstored(ctx context.Context, res Result, finish dedupstore.Finish) (Result, error) {
	l := &t.lease
	switch err := t.guard.renew(ctx, l, false); {
	case errors.Is(err, ErrClaimLost):
		return Result{}, err
	case err != nil && time.Until(l.ends()) < l.claim.Lease/margin:
		return Result{}, &UnrecordedError{Key: l.claim.Key, Err: err}
	}
	finish.Outcome.Produced, finish.Published = dedupstore.Stubs(finish.Outcome.Produced), true
	return t.publishThen(ctx, res, finish)
}

// publishThen publishes what the result holds, or leaves that to the caller, and then settles.
func (t *Ticket) publishThen(ctx context.Context, res Result, then dedupstore.Settlement) (Result, error) {
	g, l := t.guard, &t.lease
	l.keep(g.window(t.call, res.Outcome)) // heartbeats must not shorten it to that of a success
	l.rest()
	g.keeper.add(l)
	if t.call.Publish == nil && len(res.Outcome.Produced) > 0 {
		res.Publication = &Publication{
			produced: res.Outcome.Produced,
			done:     func() error { return g.published(ctx, l, then) },
			abandon:  func() time.Duration { return g.postpone(ctx, l) },
		}
		return res, nil
	}
	if len(res.Outcome.Produced) > 0 {
		if err := t.callPublish(ctx, res.Outcome.Produced); err != nil {
			if l.isLost() {
				return Result{}, g.lost(ctx, l, err)
			}
			return Result{}, &UnpublishedError{Delay: g.postpone(ctx, l), Err: err}
		}
	}
	return res, g.published(ctx, l, then)
}

// callPublish calls Call.Publish under the lease.
func (t *Ticket) callPublish(ctx context.Context, produced []dedupstore.Produced) error {
	ctx = t.lease.beginWork(ctx)
	defer t.guard.endWork(&t.lease)
	return t.call.Publish(ctx, produced)
}

// published records that everything was published. A record that stays in PUBLISHING because its claim was lost
// changes nothing for the message: what it held has been published. A run that was to finish only now is another
// matter: without its outcome it runs again.
func (g *Guard) published(ctx context.Context, l *lease, then dedupstore.Settlement) error {
	g.keeper.let(l)
	err := g.settle(ctx, l, then)
	finish, unfinished := then.(dedupstore.Finish)
	switch {
	case err == nil && unfinished:
		g.countEnd(ctx, &l.claim.Key, &finish.Outcome)
		return nil
	case err == nil || !unfinished:
		return nil
	case errors.Is(err, dedupstore.ErrClaimLost):
		return g.lost(ctx, l, nil)
	}
	return &UnrecordedError{Key: l.claim.Key, Err: err}
}

// postpone shortens the lease of a publish step that failed, so that a redelivery can take it over soon, but not at
// once. It returns when.
func (g *Guard) postpone(ctx context.Context, l *lease) time.Duration {
	g.keeper.let(l)
	l.quiet()
	delay := min(max(g.policy.Backoff.delay(1), time.Millisecond), l.claim.Lease)
	if err := g.extend(ctx, l, delay); err != nil {
		g.log.WarnContext(ctx, "oncemill: publish step not given back; its message comes again when the lease ends",
			"id", l.claim.Key.ID, "key", l.claim.Key.String(), "error", err)
		return l.claim.Lease
	}
	return delay
}

// A Publication is the publish step of an outcome, left to the caller. Its lease is extended until you call Done or
// Abandon. Call exactly one of them.
type Publication struct {
	produced []dedupstore.Produced
	once     sync.Once
	done     func() error
	abandon  func() time.Duration
}

// Messages returns what has to be published, with these IDs and bytes.
func (p *Publication) Messages() []dedupstore.Produced { return p.produced }

// Done says that the broker has acknowledged every message, and records it. You may acknowledge the message that caused
// the run before or after. The error is an *UnrecordedError or *ClaimLostError: the end of the run could not be
// recorded, and a redelivery runs it again. That happens only with outputs over Policy.MaxProducedBytes, or for which
// the store has no room.
func (p *Publication) Done() (err error) {
	p.once.Do(func() { err = p.done() })
	return err
}

// Abandon says that the messages were not published, or not all. It returns after which time a redelivery can publish
// them, or zero if the publication has ended before.
func (p *Publication) Abandon() (delay time.Duration) {
	p.once.Do(func() { delay = p.abandon() })
	return delay
}
