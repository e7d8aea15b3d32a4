package consumer

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A Ticket is a delivery on its way through a Processor. It is for one goroutine at a time. Process it or give it back.
type Ticket struct {
	processor *Processor
	delivery  Delivery
	found     identified
	decision  *Decision             // known already; nil: none is
	guarded   *oncemill.Ticket      // nil: no guard is asked
	observed  *telemetry.Processing // nil: nobody wants to know
	over      bool                  // its span has ended
}

// Claim reads a delivery and asks for its key, together with others that are asked for at this time. It calls ready
// when there is an answer, with the delivery's span in the context. Ready runs in a goroutine that makes further
// claims, so it must not wait for anything. Process the ticket at once, in this context or one made of it: a crash uses
// up an attempt of what was claimed.
func (p *Processor) Claim(ctx context.Context, d Delivery, ready func(context.Context, *Ticket)) {
	t, ctx := p.ticket(ctx, d)
	if t.guarded == nil {
		ready(ctx, t)
		return
	}
	t.guarded.Claim(ctx, func() { ready(ctx, t) })
}

// Start is Process, but it does not wait. The delivery is claimed together with others, its handler runs in a goroutine
// of its own, and its outcome is stored together with others. Start tells done what to do with the delivery, once, in a
// goroutine in which done must not wait for anything.
func (p *Processor) Start(ctx context.Context, d Delivery, handle Handler, done func(Decision)) {
	p.Claim(ctx, d, func(ctx context.Context, t *Ticket) {
		p.running.Go(func() { t.Process(ctx, handle, done) })
	})
}

// Blocking makes a SourceHandler from a function that returns its decision. The function is called in a goroutine of
// its own.
func (p *Processor) Blocking(handle func(context.Context, Delivery) Decision) SourceHandler {
	return func(ctx context.Context, d Delivery, done func(Decision)) {
		p.running.Go(func() {
			returned := false
			defer func() {
				if !returned {
					done(p.unreturned(ctx, &d, recover()))
				}
			}()
			decision := handle(ctx, d)
			returned = true
			done(decision)
		})
	}
}

// unreturned is the decision for a delivery whose processing has panicked or ended its goroutine. The panic is not the
// handler's: the guard turns those into errors.
func (p *Processor) unreturned(ctx context.Context, d *Delivery, v any) Decision {
	where := []any{"id", d.Header.Get(producer.HeaderID), "from", d.Topic, "position", d.Position}
	if v == nil {
		p.log.ErrorContext(ctx, "oncemill: handler ended its goroutine (runtime.Goexit): its message comes again "+
			"after its lease and the broker's ack deadline", where...)
		return Decision{Action: Leave, Err: errGoexit}
	}
	err := &oncemill.PanicError{Value: v, Stack: debug.Stack()}
	p.log.ErrorContext(ctx, "oncemill: panic while a message was processed; it comes again",
		append(where, "error", err, "stack", string(err.Stack))...)
	return Decision{Action: RetryLater, Delay: time.Second, Err: err}
}

var errGoexit = errors.New("consumer: the handler ended its goroutine")

// Process is Processor.Process for the ticket. It tells done what to do with the delivery, once. If it returns false,
// done has been called. If it returns true, a success is being stored together with others. Then done is called when it
// is stored or lost, in another goroutine, and must not wait for anything.
func (t *Ticket) Process(ctx context.Context, handle Handler, done func(Decision)) (later bool) {
	return t.start(ctx, handle, done)
}

// ProcessOutputs is Processor.ProcessOutputs for the ticket, and otherwise as Process.
func (t *Ticket) ProcessOutputs(ctx context.Context, handle OutputHandler, done func(Decision)) (later bool) {
	return t.start(ctx, handle, done)
}

// Fit makes the ticket one for its delivery as it is now, because somebody may have changed its ID or payload since it
// was claimed. It reports whether that can be, and whether that is what was claimed. A claim that was granted fits
// other content, too: another one would be a mismatch.
func (t *Ticket) Fit(d Delivery) (fits, same bool) {
	var now identified
	now.err = t.processor.identify(&d, &now)
	key, content, known := t.processor.compare(&t.found, &now)
	fits, same = !known || key && (content || t.guarded != nil && t.guarded.Granted()), !known || key && content
	if fits {
		t.delivery.Header, t.delivery.Payload, t.delivery.UUID = d.Header, d.Payload, d.UUID
	}
	return fits, same
}

// GiveBack gives the claim of a ticket back that is not processed.
func (t *Ticket) GiveBack(ctx context.Context) {
	if t.guarded != nil {
		t.guarded.GiveBack(ctx)
	}
	t.end(ctx, &Decision{Action: RetryLater, Err: errGivenBack})
}

// work is a handler of either kind.
type work interface {
	// do calls the handler. It is told whether a record is kept of its outputs.
	do(ctx context.Context, t *Ticket, recorded bool) (dedupstore.Outcome, error)

	// decided is told what to do with the delivery, and may change it.
	decided(ctx context.Context, t *Ticket, d Decision) Decision
}

func (h Handler) do(ctx context.Context, _ *Ticket, _ bool) (dedupstore.Outcome, error) {
	return dedupstore.Outcome{}, h(ctx)
}

// ticket finds out what a delivery is. It returns a context with its span.
func (p *Processor) ticket(ctx context.Context, d Delivery) (*Ticket, context.Context) {
	t := &Ticket{processor: p, delivery: d}
	if d.Handler == "" && !p.policy.Shadow {
		decision := p.unguardable(&t.delivery, errNoHandler)
		t.decision = &decision
		return t, ctx
	}
	p.Announce(d.Handler)
	t.found.err = p.identify(&t.delivery, &t.found)
	if p.telemetry.On(ctx) {
		ctx = t.begin(ctx)
	} else {
		ctx = p.telemetry.Propagate(ctx, d.Header)
	}
	if t.found.err != nil {
		return t, ctx
	}
	if outer := insideOf(ctx); !p.policy.Shadow && outer != nil && outer.found.call.Key == t.found.call.Key &&
		outer.delivery.Message == d.Message {
		decision := p.guardedTwice(ctx, &t.delivery, t.found.call.Key.ID)
		t.decision = &decision
		return t, ctx
	}
	t.guarded = p.guard.Ticket(&t.found.call)
	return t, ctx
}

// run processes the ticket and waits for what becomes of it.
func (t *Ticket) run(ctx context.Context, do work) Decision {
	defer t.end(ctx, nil) // if it panics, in shadow mode
	decision, known := t.known(ctx, do)
	if !known {
		res, err := t.guarded.Run(t.within(ctx), t.timed(ctx, do))
		decision = t.conclude(ctx, res, err)
	}
	t.end(ctx, &decision)
	return do.decided(ctx, t, decision)
}

// start processes the ticket, and tells done what becomes of it.
func (t *Ticket) start(ctx context.Context, do work, done func(Decision)) (later bool) {
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover()
		t.end(ctx, nil)
		done(t.processor.unreturned(ctx, &t.delivery, v))
	}()
	if decision, known := t.known(ctx, do); known {
		returned = true
		t.end(ctx, &decision)
		done(do.decided(ctx, t, decision))
		return false
	}
	later = t.guarded.Attempt(t.within(ctx), t.timed(ctx, do), func(res oncemill.Result, err error) {
		decision := t.conclude(ctx, res, err)
		t.end(ctx, &decision)
		done(do.decided(ctx, t, decision))
	})
	returned = true
	return later
}

// known returns what to do with a delivery that no guard is asked about.
func (t *Ticket) known(ctx context.Context, do work) (Decision, bool) {
	switch {
	case t.decision != nil:
		return *t.decision, true
	case t.found.err != nil:
		return t.processor.unguarded(ctx, t, do), true
	}
	return Decision{}, false
}

// within is the context for the guard. It shows when a handler is guarded twice.
func (t *Ticket) within(ctx context.Context) context.Context {
	if t.processor.policy.Shadow { // which guards nothing
		return ctx
	}
	return context.WithValue(ctx, insideKey{}, t)
}

// conclude says what to do with a delivery by how its guarded run ended.
func (t *Ticket) conclude(ctx context.Context, res oncemill.Result, err error) Decision {
	p, d, call := t.processor, &t.delivery, &t.found.call
	if p.policy.Shadow {
		return shadowed(res, err)
	}
	decision := p.decide(ctx, d, res, err)
	switch {
	case decision.Action == mismatched:
		decision = p.undeliverable(ctx, *d, call.Key.ID, outcomeMismatch, err)
	case decision.Action == Ack && res.Failure() != nil:
		decision = p.publishDeadLetter(ctx, d, *call, decision)
	case decision.Action != Ack && res.Publication != nil:
		res.Publication.Abandon() // for a process that can publish it
		decision.Result.Publication = nil
	}
	decision.ID = call.Key.ID
	return decision
}

// log tells of a delivery that is not acknowledged: at level info if its handler failed, as no other line does, and
// else at level debug.
func (t *Ticket) log(ctx context.Context, d Decision) {
	e, failed := d.Err.(*oncemill.RetryError) //nolint:errorlint // as decide
	switch {
	case d.Action == Ack:
	case failed && !e.Uncounted:
		t.processor.log.InfoContext(ctx, "oncemill: attempt failed; the message comes again", "id", d.ID,
			"handler", t.delivery.Handler, "attempt", e.Attempt, "delay", e.Delay, "error", e.Err)
	default:
		t.processor.log.DebugContext(ctx, "oncemill: not acknowledged", "id", d.ID, "action", string(d.Action),
			"delay", d.Delay, "error", d.Err)
	}
}

// decided: the handler has no outputs, and cannot publish those of an earlier run.
func (Handler) decided(ctx context.Context, t *Ticket, d Decision) Decision {
	if publication := d.Result.Publication; publication != nil {
		d = Decision{Action: RetryLater, Delay: publication.Abandon(), ID: d.ID,
			Err: &oncemill.UnpublishedError{Err: errForeignOutputs}}
		t.processor.log.ErrorContext(ctx,
			"oncemill: message waits for its stored outputs, which only a handler with outputs can publish: it is "+
				"not handled, comes again, and may hold up others",
			"id", d.ID, "from", t.delivery.Topic, "position", t.delivery.Position, "handler", t.delivery.Handler,
			"outputs", len(publication.Messages()))
	}
	t.log(ctx, d)
	return d
}

// begin begins the span of the delivery. It returns a context with it.
func (t *Ticket) begin(ctx context.Context) context.Context {
	p, d, found := t.processor, &t.delivery, &t.found
	ctx, t.observed = p.telemetry.Begin(ctx, &telemetry.Incoming{
		Group: p.config.Group, Handler: d.Handler, System: p.system(d), Destination: cmp.Or(d.Origin, d.Topic),
		Topic: d.Topic, Origin: d.Origin, ID: found.call.Key.ID, KeySource: string(found.source), Header: d.Header,
		Cause: p.causeOf(d), Link: p.config.Trace == TraceLink,
	})
	switch answer := p.withoutClaim(found.err); {
	case answer == nil:
	case p.policy.Shadow:
		t.observed.Shadow(ctx, answer.Outcome)
	default:
		t.observed.Count(ctx, answer)
	}
	return ctx
}

// end ends the span of the delivery, once. Without a decision there was a panic.
func (t *Ticket) end(ctx context.Context, d *Decision) {
	if t.observed == nil || t.over {
		return
	}
	t.over = true
	if d == nil {
		t.observed.End("", telemetry.FailedPanic, nil)
		return
	}
	failure, err := failureOf(ctx, d)
	t.observed.End(string(d.Action), failure, err)
}

// timed is what the guard runs. The delivery's own context, outside, has its span at hand.
func (t *Ticket) timed(outside context.Context, do work) oncemill.RunFunc {
	recorded := !t.processor.policy.Shadow
	return func(ctx context.Context) (dedupstore.Outcome, error) { return t.measure(ctx, outside, do, recorded) }
}

// measure calls a handler, and measures it.
func (t *Ticket) measure(
	ctx, outside context.Context, do work, recorded bool,
) (o dedupstore.Outcome, err error) {
	if t.observed == nil {
		return do.do(ctx, t, recorded)
	}
	began := t.observed.Run()
	failure := telemetry.FailedPanic
	defer func() { t.observed.Ran(outside, began, failure) }()
	o, err = do.do(ctx, t, recorded)
	if failure = handlerFailure(err); failure == telemetry.FailedOther && interrupted(ctx, err) {
		failure = telemetry.FailedCanceled
	}
	return o, err
}
