package oncemill

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// publish does the publish step of an outcome that is stored, so that copies do not publish side by side. The step has
// a lease of its own.
func (r *run) publish(ctx context.Context, e *ending) *ending {
	g, l := r.guard, &r.lease
	own := !e.sent.IsZero() // this run's outcome
	if own {
		l.setDeadline(e.sent, l.claim.Lease)
	}
	if err := g.renew(ctx, l, false); err != nil {
		g.heartbeat.remove(l)
		if own && !errors.Is(err, dedupstore.ErrClaimLost) {
			return r.ends(ending{res: Result{Status: StatusUnpublished, Wait: l.claim.Lease, Err: err}})
		}
		return r.unrenewed(ctx, err)
	}
	o := &e.res.Outcome
	if o.Kind != dedupstore.Succeeded && len(o.Produced) == 0 && r.call.DeadLetter != nil {
		// the claim itself ended the run, or the letter was too large for the record
		o.Produced = g.deadLetter(ctx, r.call, *o, l.claim.Attempt, e.res.Fence)
	}
	return r.publishThen(ctx, e, dedupstore.Published{
		Retention: g.window(r.call, *o), Produced: dedupstore.Stubs(o.Produced),
	})
}

// publishFirst publishes outputs that are too large for the record while the run still holds its claim, and finishes
// then. A crash in between runs the handler again.
func (r *run) publishFirst(ctx context.Context, e *ending) *ending {
	g, key := r.guard, &r.call.Key
	g.meter.Oversize(ctx, key.Group, key.Handler)
	g.log.WarnContext(ctx, "oncemill: produced messages are too large to be stored; a crash before they are "+
		"published runs the handler again",
		"id", key.ID, "key", key.String(), "bytes", size(e.res.Outcome.Produced), "limit", g.policy.MaxProducedBytes)
	return r.publishUnstored(ctx, e)
}

// publishUnstored publishes outputs that no record holds, and finishes then. It publishes nothing when the lease cannot
// be proven to hold: another owner may be publishing by then, and the message comes again anyway.
func (r *run) publishUnstored(ctx context.Context, e *ending) *ending {
	l := &r.lease
	switch err := r.guard.renew(ctx, l, false); {
	case errors.Is(err, dedupstore.ErrClaimLost):
		return r.lost(ctx, nil)
	case err != nil && time.Until(l.ends()) < l.claim.Lease/margin:
		return r.ends(ending{res: Result{Status: StatusUnrecorded, Err: err}})
	}
	finish, _ := e.settlement.(dedupstore.Finish)
	finish.Outcome.Produced, finish.Published = dedupstore.Stubs(finish.Outcome.Produced), true
	return r.publishThen(ctx, e, finish)
}

// publishThen publishes what the answer holds, or leaves that to the caller, and then settles.
func (r *run) publishThen(ctx context.Context, e *ending, then dedupstore.Settlement) *ending {
	g, l := r.guard, &r.lease
	l.extendRetention(g.window(r.call, e.res.Outcome)) // heartbeats must not shorten it to that of a success
	l.idle()
	g.heartbeat.add(l)
	produced := e.res.Outcome.Produced
	if r.call.Publish == nil && len(produced) > 0 {
		e.res.Publication = &Publication{
			produced: produced,
			done: func() error {
				e := r.published(ctx, &ending{res: Result{Status: StatusDone}}, then)
				_, err := e.answer(&r.call.Key)
				return err
			},
			abandon: func() time.Duration { return g.postpone(ctx, l) },
		}
		return e
	}
	if len(produced) > 0 {
		if err := r.callPublish(ctx, produced); err != nil {
			if l.isLost() {
				return r.lost(ctx, err)
			}
			return r.ends(ending{res: Result{Status: StatusUnpublished, Wait: g.postpone(ctx, l), Err: err}})
		}
	}
	return r.published(ctx, e, then)
}

// callPublish calls Call.Publish under the lease.
func (r *run) callPublish(ctx context.Context, produced []dedupstore.Produced) error {
	ctx = r.lease.beginWork(ctx)
	defer r.guard.endWork(&r.lease)
	return r.call.Publish(ctx, produced)
}

// published records that everything was published. A record that stays in PUBLISHING because its claim was lost
// changes nothing for the message: what it held has been published. A run that was to finish only now is another
// matter: without its outcome it runs again.
func (r *run) published(ctx context.Context, e *ending, then dedupstore.Settlement) *ending {
	g, l := r.guard, &r.lease
	g.heartbeat.remove(l)
	err := g.settle(ctx, l, then)
	if _, unfinished := then.(dedupstore.Finish); unfinished && err != nil {
		return r.unfinished(ctx, nil, err)
	}
	return e
}

// postpone shortens the lease of a publish step that failed, so that a redelivery can take it over soon, but not at
// once. It returns when.
func (g *Guard) postpone(ctx context.Context, l *lease) time.Duration {
	g.heartbeat.remove(l)
	l.awaitRenewal()
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
// the run before or after. The error is an *Error with StatusUnrecorded or StatusLost: the end of the run could not be
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
