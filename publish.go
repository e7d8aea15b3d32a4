package oncemill

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// publish does the publish step of an outcome, under a lease of its own so that copies do not publish side by side.
func (g *Guard) publish(ctx context.Context, call Call, h *holding, res Result, attempt int) (Result, error) {
	if res.Outcome.Kind != dedupstore.Succeeded && len(res.Outcome.Produced) == 0 && call.DeadLetter != nil {
		// the claim itself ended the run
		res.Outcome.Produced = g.deadLetter(ctx, call, res.Outcome, attempt, res.Fence)
	}
	return g.publishThen(ctx, call, h, res, dedupstore.Published{
		Retention: g.window(res.Outcome), Produced: dedupstore.Stubs(res.Outcome.Produced),
	})
}

// publishFirst publishes outputs that are too large for the record while the run still holds its claim, and finishes
// then. A crash in between runs the handler again.
func (g *Guard) publishFirst(
	ctx context.Context, call Call, h *holding, res Result, o dedupstore.Outcome,
) (Result, error) {
	g.meter.Oversize(ctx, call.Key.Group, call.Key.Handler)
	g.log.WarnContext(ctx, "oncemill: produced messages are too large to be stored; a crash before they are "+
		"published runs the handler again",
		"id", call.Key.ID, "key", call.Key.String(), "bytes", size(o.Produced), "limit", g.policy.MaxProducedBytes)
	o.Produced = dedupstore.Stubs(o.Produced)
	return g.publishThen(ctx, call, h, res, dedupstore.Finish{Outcome: o, Retention: g.window(o), Published: true})
}

// publishThen publishes what the result holds, or leaves that to the caller, and then settles.
func (g *Guard) publishThen(
	ctx context.Context, call Call, h *holding, res Result, then dedupstore.Settlement,
) (Result, error) {
	// heartbeats are not to shorten it to that of a success
	h.claim.Retention = max(h.claim.Retention, g.window(res.Outcome))
	if call.Publish == nil && len(res.Outcome.Produced) > 0 {
		res.Publication = g.publication(ctx, h, res.Outcome.Produced, then)
		return res, nil
	}
	if len(res.Outcome.Produced) > 0 {
		_, err := g.underLease(ctx, h, func(ctx context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, call.Publish(ctx, res.Outcome.Produced)
		})
		switch {
		case err != nil && h.isLost():
			return Result{}, g.lost(ctx, h, err)
		case err != nil:
			return Result{}, &UnpublishedError{Delay: g.postpone(ctx, h), Err: err}
		}
	}
	return res, g.published(ctx, h, then)
}

// published records that everything was published. A record that stays in PUBLISHING because its claim was lost
// changes nothing for the message: what it held has been published. A run that was to finish only now is another
// matter: without its outcome it runs again.
func (g *Guard) published(ctx context.Context, h *holding, then dedupstore.Settlement) error {
	err := g.settle(ctx, h, then)
	finish, unfinished := then.(dedupstore.Finish)
	switch {
	case err == nil && unfinished:
		g.ended(ctx, &h.claim.Key, &finish.Outcome)
		return nil
	case err == nil || !unfinished:
		return nil
	case errors.Is(err, dedupstore.ErrClaimLost):
		return g.lost(ctx, h, nil)
	}
	return &UnrecordedError{Key: h.claim.Key, Err: err}
}

// postpone shortens the lease of a publish step that failed, so that a redelivery can take it over soon, but not at
// once. It returns when.
func (g *Guard) postpone(ctx context.Context, h *holding) time.Duration {
	delay := min(max(g.policy.Backoff.delay(1), time.Millisecond), h.claim.Lease)
	ctx = context.WithoutCancel(ctx)
	if err := g.extend(ctx, h, delay); err != nil {
		g.log.WarnContext(ctx, "oncemill: publish step not given back, its lease must end",
			"id", h.claim.Key.ID, "key", h.claim.Key.String(), "error", err)
		return h.claim.Lease
	}
	return delay
}

// A Publication is the publish step of an outcome that is left to the caller. It holds the lease by a heartbeat until
// Done or Abandon is called, exactly one of which must be.
type Publication struct {
	produced []dedupstore.Produced
	once     sync.Once
	hb       *heartbeat
	done     func() error
	abandon  func() time.Duration
}

func (g *Guard) publication(
	ctx context.Context, h *holding, produced []dedupstore.Produced, then dedupstore.Settlement,
) *Publication {
	return &Publication{
		produced: produced,
		hb:       g.beat(ctx, h, func() bool { return true }), // nobody else can claim while the store is away
		done:     func() error { return g.published(ctx, h, then) },
		abandon:  func() time.Duration { return g.postpone(ctx, h) },
	}
}

// Messages returns what has to be published, with these IDs and bytes.
func (p *Publication) Messages() []dedupstore.Produced { return p.produced }

// Done says that every message was acknowledged by the broker, and records it. The message that caused the run may be
// acknowledged before or after. The error, an *UnrecordedError or *ClaimLostError, says that it could not be recorded
// that the run is over, so that a redelivery runs it again; it happens only with outputs over Policy.MaxProducedBytes,
// or for which the store has no room.
func (p *Publication) Done() error {
	var err error
	p.once.Do(func() {
		p.hb.stop()
		err = p.done()
	})
	return err
}

// Abandon says that the messages were not published, or not all. It returns after which time a redelivery can publish
// them; zero if the publication has ended before.
func (p *Publication) Abandon() time.Duration {
	var delay time.Duration
	p.once.Do(func() {
		p.hb.stop()
		delay = p.abandon()
	})
	return delay
}
