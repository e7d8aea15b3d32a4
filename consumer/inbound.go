package consumer

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/contexts"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// An inbound is a delivery on its way through a Processor. It is for one goroutine at a time.
type inbound struct {
	processor *Processor
	delivery  *Delivery
	found     identified
	decision  *Decision             // known already; nil: none is
	observed  *telemetry.Processing // nil: nobody wants to know
	over      bool                  // its span has ended
	inside    inside                // the context for the guard

	place int  // among those that were started together
	done  told // what to do with it, unless somebody waits for that
}

// A told function is told what to do with a delivery.
type told interface{ tell(place int, d Decision) }

type toldEach func(place int, d Decision)

func (t toldEach) tell(place int, d Decision) { t(place, d) }

// Start is Process, but it does not wait. The delivery is claimed together with others, its handler runs in a goroutine
// of its own, and its outcome is stored together with others. Start tells done what to do with the delivery, once, in a
// goroutine in which done must not wait for anything.
func (p *Processor) Start(ctx context.Context, d Delivery, handle Handler, done func(Decision)) {
	p.StartAll(ctx, []Delivery{d}, func(ctx context.Context, _ int) error { return handle(ctx) },
		func(_ int, d Decision) { done(d) })
}

// StartAll is Start for several deliveries that have come together. Handle and done get the delivery's place in the
// slice. A delivery must not be changed before done is told.
func (p *Processor) StartAll(ctx context.Context, deliveries []Delivery, handle func(ctx context.Context, i int) error,
	done func(i int, d Decision)) {
	s := &started{
		handle: handle, all: make([]inbound, len(deliveries)), contexts: make([]context.Context, len(deliveries)),
	}
	calls := make([]oncemill.Call, len(deliveries))
	within, places := make([]context.Context, 0, len(deliveries)), make([]int, 0, len(deliveries))
	for i := range deliveries {
		in := &s.all[i]
		in.place, in.done, in.found.call = i, toldEach(done), &calls[len(places)]
		s.contexts[i] = p.receive(ctx, &deliveries[i], in) //nolint:fatcontext // one for each
		if in.guarded() {
			within, places = append(within, in.within(s.contexts[i])), append(places, i)
			continue
		}
		calls[len(places)], in.found.call = oncemill.Call{}, &oncemill.Call{Key: in.found.call.Key}
		p.running.Go(func() { in.tell(s.contexts[i], func() Decision { return in.unguarded(s.contexts[i], s) }) })
	}
	p.guard.Start(within, calls[:len(places)], func(ctx context.Context, call int) (dedupstore.Outcome, error) {
		i := places[call]
		return s.all[i].measure(ctx, s.contexts[i], s, !p.config.Policy.Shadow)
	}, func(call int, res oncemill.Result, err error) {
		i := places[call]
		s.all[i].ended(s.contexts[i], s, res, err)
	})
}

// A started batch of deliveries has one handler, which is called for each.
type started struct {
	handle   func(ctx context.Context, i int) error
	all      []inbound
	contexts []context.Context // with the deliveries' spans
}

func (s *started) do(ctx context.Context, in *inbound, _ bool) (dedupstore.Outcome, error) {
	return dedupstore.Outcome{}, s.handle(ctx, in.place)
}

func (s *started) decided(ctx context.Context, in *inbound, d Decision) Decision {
	return Handler(nil).decided(ctx, in, d)
}

// An Arrival is a delivery on its way to a handler that is not reached yet, such as one that passes middlewares first.
type Arrival interface {
	// Claimed is told that the delivery is claimed or has another answer, with the delivery's span in the context, in a
	// goroutine that makes further claims: it must not wait for anything. Begin or give back what it is told, soon: a
	// crash uses up an attempt of what was claimed.
	Claimed(ctx context.Context, a *Ahead)

	// Decided is told what to do with a delivery that has begun, once, and must not wait for anything.
	Decided(d Decision)
}

// StartAhead is Start for an arrival.
func (p *Processor) StartAhead(ctx context.Context, d Delivery, of Arrival) {
	a := &Ahead{delivery: d, of: of}
	a.inbound.found.call, a.inbound.done = &a.call, (*arrived)(a)
	a.outside = p.receive(ctx, &a.delivery, &a.inbound)
	if !a.inbound.guarded() {
		of.Claimed(a.outside, a)
		return
	}
	p.guard.StartAhead(a.outside, &a.claim, &a.call, (*arrived)(a))
}

// An Ahead is a delivery that was claimed before its handler begins: for transports. Call one of its methods, once.
type Ahead struct {
	inbound  inbound
	call     oncemill.Call
	claim    oncemill.Ahead
	delivery Delivery
	of       Arrival
	outside  context.Context // the delivery's own, with its span
	handle   OutputHandler
}

// Begin is ProcessOutputs for the delivery as it is now: somebody may have changed its ID or payload since it was
// claimed. A claim that was granted serves other content, too: another one would be a mismatch. Begin reports whether
// the delivery is what was claimed.
//
// Begin calls handle in the caller's goroutine. If later is false, it has told what to do with the delivery. If it is
// true, a success is being stored together with others, and that is told when it is stored or lost, in another
// goroutine.
func (a *Ahead) Begin(ctx context.Context, d Delivery, handle OutputHandler) (later, same bool) {
	in := &a.inbound
	a.handle, a.outside = handle, ctx
	returned := false
	defer func() { // unless a user's function ends the goroutine
		if !returned {
			a.GiveBack(ctx)
		}
	}()
	key, content, known := in.processor.compare(&in.found, &d)
	returned = true
	same = !known || key && content
	switch {
	case same, key && in.guarded() && a.claim.Granted():
		in.delivery.Header, in.delivery.Payload, in.delivery.UUID = d.Header, d.Payload, d.UUID
		if !in.guarded() {
			in.tell(ctx, func() Decision { return in.unguarded(ctx, handle) })
			return false, same
		}
		return a.claim.Begin(in.within(ctx)), same
	}
	a.GiveBack(ctx)
	a.of.Decided(in.processor.ProcessOutputs(ctx, d, handle))
	return false, same
}

// An arrived delivery is told what becomes of its call.
type arrived Ahead

func (a *arrived) Claimed() { a.of.Claimed(a.outside, (*Ahead)(a)) }

func (a *arrived) Handle(ctx context.Context) (dedupstore.Outcome, error) {
	return a.inbound.measure(ctx, a.outside, a.handle, !a.inbound.processor.config.Policy.Shadow)
}

func (a *arrived) Ended(res oncemill.Result, err error) {
	a.inbound.ended(a.outside, a.handle, res, err)
}

func (a *arrived) tell(_ int, d Decision) { a.of.Decided(d) }

// GiveBack gives the claim of a delivery back that does not begin.
func (a *Ahead) GiveBack(ctx context.Context) {
	if a.inbound.guarded() {
		a.claim.GiveBack(ctx)
	}
	a.inbound.end(ctx, &Decision{Action: RetryLater, Err: errGivenBack})
}

// unreturned is the decision for a delivery whose processing has panicked or ended its goroutine. The panic is not the
// handler's: the guard turns those into errors.
func (p *Processor) unreturned(ctx context.Context, d *Delivery, why *oncemill.PanicError) Decision {
	where := []any{"id", d.Header.Get(producer.HeaderID), "from", d.Topic, "position", d.Position}
	if why.Value == nil {
		p.log.ErrorContext(ctx, "oncemill: handler ended its goroutine (runtime.Goexit): its message comes again "+
			"after its lease and the broker's ack deadline", where...)
		return Decision{Action: Leave, Err: errGoexit}
	}
	p.log.ErrorContext(ctx, "oncemill: panic while a message was processed; it comes again",
		append(where, "error", why, "stack", string(why.Stack))...)
	return Decision{Action: RetryLater, Delay: time.Second, Err: why}
}

var errGoexit = errors.New("consumer: the handler ended its goroutine")

// work is a handler of either kind.
type work interface {
	// do calls the handler. It is told whether a record is kept of its outputs.
	do(ctx context.Context, in *inbound, recorded bool) (dedupstore.Outcome, error)

	// decided is told what to do with the delivery, and may change it.
	decided(ctx context.Context, in *inbound, d Decision) Decision
}

func (h Handler) do(ctx context.Context, _ *inbound, _ bool) (dedupstore.Outcome, error) {
	return dedupstore.Outcome{}, h(ctx)
}

// inbound makes an inbound of a delivery. It returns a context with its span.
func (p *Processor) inbound(ctx context.Context, d Delivery) (*inbound, context.Context) {
	in := &struct {
		inbound
		call     oncemill.Call
		delivery Delivery
	}{delivery: d}
	in.found.call = &in.call
	return &in.inbound, p.receive(ctx, &in.delivery, &in.inbound)
}

// receive finds out what a delivery is. It returns a context with its span.
func (p *Processor) receive(ctx context.Context, d *Delivery, in *inbound) context.Context {
	in.processor, in.delivery = p, d
	if d.Handler == "" && !p.config.Policy.Shadow {
		decision := p.unguardable(in.delivery, errNoHandler)
		in.decision = &decision
		return ctx
	}
	p.Announce(d.Handler)
	in.found.err = p.identify(d, &in.found)
	if call := in.found.call; in.found.err == nil && p.config.DeadLetters != nil {
		call.DeadLetter = func(o dedupstore.Outcome, attempt int, fence uint64) []dedupstore.Produced {
			return []dedupstore.Produced{p.deadLetter(*d, call.Key, o, attempt, fence)}
		}
	}
	if p.telemetry.On(ctx) {
		ctx = in.begin(ctx)
	} else {
		ctx = p.telemetry.Propagate(ctx, d.Header)
	}
	if in.found.err != nil {
		return ctx
	}
	if outer := insideOf(ctx); !p.config.Policy.Shadow && outer != nil && outer.found.call.Key == in.found.call.Key &&
		outer.delivery.Message == d.Message {
		decision := p.guardedTwice(ctx, in.delivery, in.found.call.Key.ID)
		in.decision = &decision
	}
	return ctx
}

// guarded reports whether the guard is asked about the delivery.
func (in *inbound) guarded() bool { return in.decision == nil && in.found.err == nil }

// process takes the delivery all the way and waits for what becomes of it.
func (in *inbound) process(ctx context.Context, do work) Decision {
	defer in.end(ctx, nil) // if it panics, in shadow mode
	if !in.guarded() {
		return in.unguarded(ctx, do)
	}
	res, err := in.processor.guard.Run(in.within(ctx), *in.found.call, in.timed(ctx, do))
	return in.concluded(ctx, do, res, err)
}

// concluded is what to do with a delivery whose guarded run has ended.
func (in *inbound) concluded(ctx context.Context, do work, res oncemill.Result, err error) Decision {
	d := in.conclude(ctx, res, err)
	in.end(ctx, &d)
	return do.decided(ctx, in, d)
}

// ended takes how the guarded run of the delivery ended, and tells what to do with the delivery.
func (in *inbound) ended(ctx context.Context, do work, res oncemill.Result, err error) {
	if why, is := err.(*oncemill.PanicError); is && res.Status == 0 { //nolint:errorlint // the guard's
		in.end(ctx, nil)
		in.done.tell(in.place, in.processor.unreturned(ctx, in.delivery, why))
		return
	}
	in.tell(ctx, func() Decision { return in.concluded(ctx, do, res, err) })
}

// tell tells what was decided, also if deciding panics or ends its goroutine.
func (in *inbound) tell(ctx context.Context, decide func() Decision) {
	returned := false
	defer func() {
		if returned {
			return
		}
		why := &oncemill.PanicError{Value: recover(), Stack: debug.Stack()}
		in.end(ctx, nil)
		in.done.tell(in.place, in.processor.unreturned(ctx, in.delivery, why))
	}()
	d := decide()
	returned = true
	in.done.tell(in.place, d)
}

// unguarded is what to do with a delivery that no guard is asked about.
func (in *inbound) unguarded(ctx context.Context, do work) Decision {
	var d Decision
	if in.decision != nil {
		d = *in.decision
	} else {
		d = in.processor.unguarded(ctx, in, do)
	}
	in.end(ctx, &d)
	return do.decided(ctx, in, d)
}

// within is the context for the guard. It shows when a handler is guarded twice.
func (in *inbound) within(ctx context.Context) context.Context {
	if in.processor.config.Policy.Shadow { // which guards nothing
		return ctx
	}
	in.inside = inside{contexts.Under(ctx), in}
	return &in.inside
}

// conclude says what to do with a delivery by how its guarded run ended.
func (in *inbound) conclude(ctx context.Context, res oncemill.Result, err error) Decision {
	p, d, call := in.processor, in.delivery, in.found.call
	if p.config.Policy.Shadow {
		return shadowed(res, err)
	}
	decision := p.decide(ctx, d, res, err)
	switch {
	case decision.Action == mismatched:
		if decision = p.undeliverable(ctx, *d, call.Key.ID, outcomeMismatch, err); decision.Result.Status == 0 {
			decision.Result = res
		}
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
func (in *inbound) log(ctx context.Context, d Decision) {
	switch {
	case d.Action == Ack:
	case d.Result.Status == oncemill.StatusRetry && !d.Result.Uncounted:
		in.processor.log.InfoContext(ctx, "oncemill: attempt failed; the message comes again", "id", d.ID, "handler",
			in.delivery.Handler, "attempt", d.Result.Attempt, "delay", d.Result.Wait, "error", d.Result.Handler)
	default:
		in.processor.log.DebugContext(ctx, "oncemill: not acknowledged", "id", d.ID, "action", string(d.Action),
			"delay", d.Delay, "error", d.Err)
	}
}

// decided: the handler has no outputs, and cannot publish those of an earlier run.
func (Handler) decided(ctx context.Context, in *inbound, d Decision) Decision {
	if publication := d.Result.Publication; publication != nil {
		d = unpublished(d.ID, publication.Abandon(), errForeignOutputs)
		in.processor.log.ErrorContext(ctx,
			"oncemill: message waits for its stored outputs, which only a handler with outputs can publish: it is "+
				"not handled, comes again, and may hold up others",
			"id", d.ID, "from", in.delivery.Topic, "position", in.delivery.Position, "handler", in.delivery.Handler,
			"outputs", len(publication.Messages()))
	}
	in.log(ctx, d)
	return d
}

// begin begins the span of the delivery. It returns a context with it.
func (in *inbound) begin(ctx context.Context) context.Context {
	p, d, found := in.processor, in.delivery, &in.found
	ctx, in.observed = p.telemetry.Begin(ctx, &telemetry.Incoming{
		Group: p.config.Group, Handler: d.Handler, System: p.system(d), Destination: cmp.Or(d.Origin, d.Topic),
		Topic: d.Topic, Origin: d.Origin, ID: found.call.Key.ID, KeySource: string(found.source), Header: d.Header,
		Cause: p.causeOf(d), Link: p.config.Trace == TraceLink,
	})
	switch answer := p.withoutClaim(found.err); {
	case answer == nil:
	case p.config.Policy.Shadow:
		in.observed.Shadow(ctx, answer.Outcome)
	default:
		in.observed.Count(ctx, answer)
	}
	return ctx
}

// end ends the span of the delivery, once. Without a decision there was a panic.
func (in *inbound) end(ctx context.Context, d *Decision) {
	if in.observed == nil || in.over {
		return
	}
	in.over = true
	if d == nil {
		in.observed.End("", telemetry.FailedPanic, nil)
		return
	}
	failure, err := failureOf(ctx, d)
	in.observed.End(string(d.Action), failure, err)
}

// timed is what the guard runs. The delivery's own context, outside, has its span at hand.
func (in *inbound) timed(outside context.Context, do work) oncemill.RunFunc {
	recorded := !in.processor.config.Policy.Shadow
	return func(ctx context.Context) (dedupstore.Outcome, error) { return in.measure(ctx, outside, do, recorded) }
}

// measure calls a handler, and measures it.
func (in *inbound) measure(
	ctx, outside context.Context, do work, recorded bool,
) (o dedupstore.Outcome, err error) {
	if in.observed == nil {
		return do.do(ctx, in, recorded)
	}
	began := in.observed.Run()
	failure := telemetry.FailedPanic
	defer func() { in.observed.Ran(outside, began, failure) }()
	o, err = do.do(ctx, in, recorded)
	failure = failureIn(ctx, err)
	return o, err
}

// failureIn is the kind of a handler's error that was returned in a context. An error that panics when it is looked at
// must not count as the handler's panic.
func failureIn(ctx context.Context, err error) (failure telemetry.Failure) {
	defer func() {
		if recover() != nil {
			failure = telemetry.FailedOther
		}
	}()
	failure = handlerFailure(err)
	if failure == telemetry.FailedOther && interrupted(ctx, err) {
		return telemetry.FailedCanceled
	}
	return failure
}
