package consumer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
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
// has the message, and that no middleware outside this one changes the outputs. Of an output's context nothing is stored: what its
// publisher has to know belongs into its metadata.
//
// A handler that nacks its message has failed, also if it returns nil. Watermill's own Retry inside of this middleware makes a handler
// that nacks and returns an error succeed at times, which is not believed, so that its effect is made again: let it do one or the other, or
// use Retry of this package. A message that has been nacked before, as by a handler that a Retry outside calls again, is not handled.
//
// A duplicate of a success returns nil. Everything else that must not be acknowledged returns an error, which the
// Router answers with a nack: *oncemill.BusyError, *oncemill.RetryError, *oncemill.FailedError when there is no
// Config.DeadLetters, and so on as listed at oncemill.Guard.Run.
//
// Without Config.DeadLetters it logs a warning, once for each Processor.
func (p *Processor) Middleware(next message.HandlerFunc) message.HandlerFunc {
	if p.config.DeadLetters == nil && !p.policy.Shadow {
		p.begun.Do(func() {
			p.log.Warn("oncemill: no Config.DeadLetters: what fails for good, has no usable ID or other content under a known ID is rejected, and nobody has it; unless a poison queue outside of the middleware does, workers and sources end it, and only this log has it",
				"tenant", p.config.Tenant, "group", p.config.Group)
		})
	}
	return p.middleware(next, false)
}

// poisoned is Middleware inside a PoisonQueue.
func (p *Processor) poisoned(next message.HandlerFunc) message.HandlerFunc {
	return p.middleware(next, true)
}

func (p *Processor) middleware(next message.HandlerFunc, poisoned bool) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		growStack(0)
		ctx := msg.Context()
		d := Delivery{
			Handler: message.HandlerNameFromCtx(ctx),
			Topic:   message.SubscribeTopicFromCtx(ctx),
			Header:  producer.Header(msg.Metadata),
			UUID:    msg.UUID,
			Payload: msg.Payload,
		}
		if p.config.Handler != "" {
			p.oneName(ctx, d.Handler)
		}
		h := handled{repeats: p.guard.Transacts()}
		returned := false
		defer func() {
			if returned {
				return
			}
			if v := recover(); v != nil {
				panic(v) // somebody outside may make an error of it
			}
			msg.Nack() // the handler has ended its goroutine, which is the Router's
		}()
		way := passageOf(ctx)
		if way != nil {
			known := &way.delivery
			d.Topic, d.Origin, d.Position = cmp.Or(d.Topic, known.Topic), known.Origin, known.Position
			d.Count, d.Holds, d.System = known.Count, known.Holds, known.System
		}
		var decision Decision
		p.process(ctx, &d, msg, &decision, func(ctx context.Context, recorded bool) (dedupstore.Outcome, error) {
			if err := h.handle(ctx, msg, &d, recorded, next); err != nil || !recorded || len(h.returned) == 0 {
				return dedupstore.Outcome{}, err
			}
			produced, err := stamp(ctx, d.Header, h.returned)
			return dedupstore.Outcome{Produced: produced}, err
		})
		returned = true
		if decision.Action == Ack && way != nil && way.decided.Load() != nil { // a middleware outside has called again
			way.decide(decision)
		}
		if decision.Action == Ack && decision.Result.Publication == nil && !decision.Result.Bypassed { // nearly always
			return nil, nil
		}
		if h.kept {
			h.restore(msg, &d)
		}
		return p.answer(msg, &decision, h.returned, poisoned)
	}
}

// stackOfMessage is how much stack the way of a message through the guard takes, in bytes, without what its handler needs.
const stackOfMessage = 4 << 10

// growStack lets the stack grow at once to what the message needs. A Router has a goroutine for each message, whose stack is
// small; when it grows, the runtime goes through all that is on it, which is little here, and much where the need would be noticed.
//
//go:noinline
func growStack(at int) byte {
	var space [stackOfMessage]byte
	return space[at]
}

// oneName warns of a second handler under the name that Config.Handler gives to all of them: of a message that both get, it is
// a duplicate to the second.
func (p *Processor) oneName(ctx context.Context, handler string) {
	first := p.named.Load()
	if first == nil {
		mine := handler
		if p.named.CompareAndSwap(nil, &mine) {
			return
		}
		first = p.named.Load()
	}
	if *first != handler {
		p.several.Do(func() {
			p.log.WarnContext(ctx, "oncemill: several handlers of a Router have one name, Config.Handler: a message that several of them get is handled by one, and is a duplicate to the others; unless they are meant to do the same, give each a Processor of its own",
				"group", p.config.Group, "name", p.config.Handler, "handler", *first, "other", handler)
		})
	}
}

// A handled message has been given to its handler.
type handled struct {
	returned []*message.Message // as the handler returned them
	header   pairs              // as it was
	kept     bool               // the message has the map still that its handler had
	repeats  bool               // it may be given to its handler again, or fail, although that returned nil
}

// handle runs the handler on its message, and undoes afterwards what it did to it: adapters that resend in the process
// send a copy of it, which must be the same message again. The handler gets a payload of its own for that reason. Its map
// of metadata is its own, too: outputs may have it, and goroutines that outlive it may write to it, so that nobody looks
// at it again. A new one is made when somebody may want the message, and not for one that is done.
func (h *handled) handle(ctx context.Context, msg *message.Message, d *Delivery, recorded bool, next message.HandlerFunc) (err error) {
	uuid, payload, before := msg.UUID, msg.Payload, msg.Context()
	h.header = pairsOf(msg.Metadata)
	defer func() {
		msg.UUID, msg.Payload = uuid, payload
		msg.SetContext(before)
		if !h.kept {
			h.restore(msg, d)
		}
	}()
	msg.SetContext(ctx)
	msg.Payload = bytes.Clone(payload)
	if recorded && isClosed(msg.Nacked()) { // it comes again, and of a second nack nobody would know
		return oncemill.Uncounted(oncemill.NoEffect(errNackedBefore))
	}
	h.returned, err = next(msg)
	if err == nil && recorded && isClosed(msg.Nacked()) {
		h.returned, err = nil, errHandlerNacked
	}
	h.kept = err == nil && len(h.returned) == 0 && !h.repeats
	for i, m := range h.returned {
		if m == msg { // as the handler leaves it
			h.returned[i] = m.CopyWithContext()
		}
	}
	return err
}

// errHandlerNacked is the error of a handler that says with a nack that it has failed.
var errHandlerNacked = errors.New("consumer: the handler has nacked its message, and returned no error")

// errNackedBefore is the error of a message for which the broker has been asked to deliver it again.
var errNackedBefore = errors.New("consumer: the message was nacked before its handler was called")

func isClosed(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}

// restore makes the metadata what it was.
func (h *handled) restore(msg *message.Message, d *Delivery) {
	if d.Header != nil {
		d.Header = make(producer.Header, len(h.header))
		for _, pair := range h.header {
			d.Header[pair.name] = pair.value
		}
	}
	msg.Metadata, h.kept = message.Metadata(d.Header), false
}

// Pairs are what metadata is, in less memory than a map's.
type pairs []struct{ name, value string }

//
//go:noinline
func pairsOf(m message.Metadata) pairs {
	p := make(pairs, 0, len(m))
	for name, value := range m {
		p = append(p, struct{ name, value string }{name, value})
	}
	return p
}

// answer carries a decision out as far as a Router lets a middleware do so.
func (p *Processor) answer(msg *message.Message, decision *Decision, returned []*message.Message, poisoned bool) ([]*message.Message, error) {
	ctx := msg.Context()
	publication := decision.Result.Publication
	switch {
	case decision.Action == Ack && publication != nil && !p.watch(ctx, msg, publication):
		return nil, errClosed
	case decision.Action == Ack && publication != nil:
		return outputs(publication.Messages(), returned), nil
	case decision.Action == Ack && decision.Result.Bypassed && !p.policy.Shadow:
		return withoutOrders(returned), nil
	case decision.Action == Ack && decision.Result.Bypassed:
		return returned, nil
	case decision.Action == Ack:
		return nil, nil
	case p.policy.Shadow:
		return returned, decision.Err
	}
	p.notAcknowledged(ctx, decision)
	_, busy := decision.Err.(*oncemill.BusyError) //nolint:errorlint // the guard's own error
	acked := isClosed(msg.Acked())                // which nothing takes back
	if decision.Action == RetryLater && !busy && acked {
		p.log.ErrorContext(ctx, "oncemill: message was acknowledged before it had succeeded, by its handler or a middleware such as InstantAck: its broker will not deliver it again",
			"id", decision.ID, "uuid", msg.UUID, "topic", message.SubscribeTopicFromCtx(ctx), "error", decision.Err)
	}
	if poisoned && final(decision.Err) && decision.ID != "" && producer.Header(msg.Metadata).Get(producer.HeaderID) == "" {
		msg.Metadata.Set(producer.HeaderID, decision.ID) // the poison's: where it was found need not be carried along
	}
	if way := passageOf(ctx); way != nil {
		if acked {
			return nil, decision.Err
		}
		way.decide(*decision)
		return nil, decision.Err
	}
	if poisoned && final(decision.Err) {
		return nil, decision.Err // the message is acknowledged
	}
	// A Router can only nack, and most adapters deliver again at once. Where the record makes the next delivery wait, by
	// a lease or a retry that is not due, its hold spends the delay, if there is one; else it is spent here.
	_, retry := decision.Err.(*oncemill.RetryError) //nolint:errorlint // the guard's own error
	if p.config.Hold == 0 || !retry && !busy {
		pause(ctx, p.beforeNack(*decision))
	}
	return nil, decision.Err
}

// beforeNack is how long a delivery that is answered by a nack is kept, at most Config.Hold, or without one Backoff.Min and no
// longer than the usual hold.
func (p *Processor) beforeNack(decision Decision) time.Duration {
	bound := p.config.Hold
	if bound == 0 {
		bound = min(p.policy.Backoff.Min, usualHold)
	}
	if decision.Action == RetryLater {
		return min(decision.Delay, bound)
	}
	return bound
}

// errClosed refuses to publish outputs whose publication nobody would record.
var errClosed = errors.New("consumer: Processor is closed")

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// longestPublish bounds how long a Router may take to publish outputs before they are given up to a redelivery. It is
// met only by a message that is never settled, such as one that an outer middleware swapped for a copy.
const longestPublish = 15 * time.Minute

// watch keeps the claim until the Router has published the outputs and acknowledged the message, or failed to. It
// reports false, and gives the publication up, if the Processor is closed.
func (p *Processor) watch(ctx context.Context, msg *message.Message, publication *oncemill.Publication) bool {
	p.mu.Lock()
	open := !p.closing
	if open {
		p.watchers.Add(1)
	}
	p.mu.Unlock()
	if !open {
		publication.Abandon()
		return false
	}
	ctx = context.WithoutCancel(ctx)
	go func() {
		defer p.watchers.Done()
		limit := time.NewTimer(longestPublish)
		defer limit.Stop()
		select {
		case <-msg.Acked():
			// The guard has logged an error loudly; the message is acknowledged, so there is nobody to return it to.
			_ = publication.Done()
			return
		case <-msg.Nacked():
			p.log.WarnContext(ctx, "oncemill: outputs were not published, so their message comes again for them, without a run, and may hold up others; the Router's log says why: outputs that their broker refuses for good are tried for ever",
				"uuid", msg.UUID, "topic", message.SubscribeTopicFromCtx(ctx), "to", message.PublishTopicFromCtx(ctx), "outputs", len(publication.Messages()))
		case <-p.closed:
		case <-limit.C:
			p.log.ErrorContext(ctx, "oncemill: message neither acked nor nacked, its outputs are given up to a redelivery", "uuid", msg.UUID, "after", longestPublish)
		}
		publication.Abandon()
	}()
	return true
}

// Close waits until it is recorded that the outputs of all deliveries are published. Call it after the Router is
// closed, so that its last messages are settled. When ctx ends first, it gives the rest up, to be published by
// redeliveries, and returns the context's error. Afterwards deliveries whose outputs have to be published are refused.
func (p *Processor) Close(ctx context.Context) error {
	p.mu.Lock()
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
		p.giveUp.Do(func() { close(p.closed) })
		<-ended
		return context.Cause(ctx)
	}
}
