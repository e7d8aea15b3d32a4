package consumer

import (
	"context"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// Middleware guards a handler in a Watermill Router; add it once, to the Router or to single handlers. See Chain for
// its place among Retry, Timeout and PoisonQueue.
//
// What the handler returns is stored with the outcome, stamped with IDs that follow from the consumed message, and
// handed to the Router, which publishes it after the middleware has returned. The delivery's claim is held until the
// Router has acknowledged the message, which says that the outputs are published, or has not, and then a redelivery
// publishes them without running the handler. This needs a publisher that returns from Publish only when the broker
// has the message, and that no middleware outside this one changes the outputs.
//
// A duplicate of a success returns nil. Everything else that must not be acknowledged returns an error, which the
// Router answers with a nack: *oncemill.BusyError, *oncemill.RetryError, *oncemill.FailedError when there is no
// Config.DeadLetters, and so on as listed at oncemill.Guard.Run.
func (p *Processor) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		d := Delivery{
			Handler: message.HandlerNameFromCtx(ctx),
			Topic:   message.SubscribeTopicFromCtx(ctx),
			Header:  producer.Header(maps.Clone(msg.Metadata)),
			UUID:    msg.UUID,
			Payload: msg.Payload,
		}
		var returned []*message.Message // as the handler returned them
		decision := p.process(ctx, d, func(runCtx context.Context) (dedupstore.Outcome, error) {
			msg.SetContext(runCtx)
			defer restore(ctx, msg, d)
			var err error
			returned, err = next(msg)
			if err != nil || p.policy.Shadow || runCtx.Value(bypassKey{}) != nil {
				return dedupstore.Outcome{}, err // no record of the outputs is kept, so they stay as they are
			}
			return dedupstore.Outcome{Produced: stamp(runCtx, d, returned)}, nil
		})
		return p.answer(msg, decision, returned)
	}
}

// restore undoes what the handler did to its message: adapters that resend in the process send a copy of it, which must
// be the same message again.
func restore(ctx context.Context, msg *message.Message, d Delivery) {
	msg.SetContext(ctx)
	msg.UUID, msg.Payload = d.UUID, d.Payload
	msg.Metadata = message.Metadata(maps.Clone(d.Header))
}

// answer carries a decision out as far as a Router lets a middleware do so.
func (p *Processor) answer(msg *message.Message, decision Decision, returned []*message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	publication := decision.Result.Publication
	switch {
	case decision.Action == Ack && publication != nil:
		p.watch(msg, publication)
		return outputs(publication.Messages(), returned), nil
	case decision.Action == Ack && decision.Result.Bypassed:
		return returned, nil
	case decision.Action == Ack:
		return nil, nil
	case p.policy.Shadow:
		return returned, decision.Err
	case decision.Action == Reject:
		// A Router can only nack, and most adapters deliver again at once.
		pause(ctx, p.config.Hold)
	}
	p.log.DebugContext(ctx, "oncemill: not acknowledged", "action", string(decision.Action), "delay", decision.Delay, "error", decision.Err)
	return nil, decision.Err
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// watch keeps the claim until the Router has published the outputs and acknowledged the message, or failed to.
func (p *Processor) watch(msg *message.Message, publication *oncemill.Publication) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		publication.Abandon()
		return
	}
	p.watchers.Go(func() {
		select {
		case <-msg.Acked():
			// The guard has logged an error loudly; the message is acknowledged, so there is nobody to return it to.
			_ = publication.Done()
		case <-msg.Nacked():
			publication.Abandon()
		case <-p.closed:
			publication.Abandon()
		}
	})
}

// Close waits until it is recorded that the outputs of all deliveries are published. Call it after the Router is
// closed, so that its last messages are settled. When ctx ends first, it gives the rest up, to be published by
// redeliveries, and returns the context's error. The Processor can be used afterwards only for handlers without outputs.
func (p *Processor) Close(ctx context.Context) error {
	p.mu.Lock()
	first := !p.closing
	p.closing = true
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.watchers.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		if first {
			close(p.closed)
		}
		<-ended
		return context.Cause(ctx)
	}
}
