package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/contexts"
	"github.com/oncemill/oncemill/internal/headers"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/marks"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A Processor makes handlers safe to be given the same message again. It is safe for concurrent use.
type Processor struct {
	guard  *oncemill.Guard
	config Config // with its defaults filled in, its Policy's too
	log    *slog.Logger

	telemetry *telemetry.Consumer
	nested    sync.Once // says that a handler is guarded twice

	mu       sync.Mutex
	closing  bool
	closed   chan struct{}
	giveUp   sync.Once // closes closed
	watchers sync.WaitGroup
	running  batch.Background // handlers that Start has called
}

// New returns a Processor that keeps its records in store. The error names the field of the config that is wrong.
func New(store dedupstore.Store, config Config) (*Processor, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	if isnil.Nil(store) {
		return nil, invalid("store", "is nil")
	}
	guard, err := oncemill.NewGuard(store, config.Policy)
	if err != nil {
		return nil, err
	}
	observer, err := telemetry.NewConsumer(telemetry.Providers(config.Policy.Telemetry))
	if err != nil {
		return nil, fmt.Errorf("consumer: make instruments: %w", err)
	}
	config.Policy = guard.Policy()
	return &Processor{
		guard: guard, config: config, log: config.Policy.Logger, telemetry: observer, closed: make(chan struct{}),
	}, nil
}

// Check asks the store to look at its server: see oncemill.Guard.Check. If Config.DeadLetters has a method Check(ctx,
// topic) error, as a publisher may, Check calls it with DeadLetterTopic. Call it at start-up to fail early.
func (p *Processor) Check(ctx context.Context) (dedupstore.Report, error) {
	report, err := p.guard.Check(ctx)
	if err != nil {
		return report, err
	}
	deadLetters, ok := p.config.DeadLetters.(interface {
		Check(ctx context.Context, topic string) error
	})
	if !ok {
		return report, nil
	}
	if err := deadLetters.Check(ctx, p.config.DeadLetterTopic); err != nil {
		return report, fmt.Errorf("consumer: Config.DeadLetters: %w", err)
	}
	return report, nil
}

// Config returns the configuration with its defaults filled in, its Policy's too, for transports that compare it with
// the settings of a broker.
func (p *Processor) Config() Config { return p.config }

// Transacts reports whether a handler runs in a transaction of the store: see oncemill.Guard.Transacts.
func (p *Processor) Transacts() bool { return p.guard.Transacts() }

// Process guards one delivery to a handler, and returns what to do with it. It is the whole of a consumer, without a
// broker: transports carry its decisions out. It blocks while the handler runs, and for up to Config.MaxWait before.
func (p *Processor) Process(ctx context.Context, d Delivery, handle Handler) Decision {
	in, ctx := p.inbound(ctx, d)
	return in.process(ctx, handle)
}

// Same reports whether two deliveries have the same key and, as far as the policy compares it, the same content. It is
// not known if neither can be identified.
func (p *Processor) Same(a, b Delivery) (same, known bool) {
	one := identified{call: &oncemill.Call{}}
	one.err = p.identify(&a, &one)
	key, content, known := p.compare(&one, &b)
	return key && content, known
}

// compare reports whether a delivery has the same key as what was identified, and the same content.
func (p *Processor) compare(with *identified, d *Delivery) (key, content, known bool) {
	found := identified{call: &oncemill.Call{}}
	found.err = p.identify(d, &found)
	if with.err != nil || found.err != nil {
		return false, false, with.err == nil || found.err == nil
	}
	return with.call.Key == found.call.Key && with.call.Rerun == found.call.Rerun,
		with.call.Fingerprint == found.call.Fingerprint || p.config.Policy.Mismatch == oncemill.MismatchIgnore, true
}

// errGivenBack is the error of a delivery that was claimed and not processed.
var errGivenBack = errors.New("consumer: the delivery was given back before it was processed")

// guardedTwice refuses a delivery whose handler is being guarded already.
func (p *Processor) guardedTwice(ctx context.Context, d *Delivery, id string) Decision {
	nested := &guardedTwiceError{d.Handler}
	p.nested.Do(func() { // of the outer guard's answer, which is a retry, no log need say anything
		p.log.ErrorContext(ctx, "oncemill: handler is guarded twice, and runs for none of its messages, which are kept",
			"id", id, "error", nested)
	})
	return Decision{Action: RetryLater, Delay: p.config.Policy.Backoff.Min, ID: id, Err: oncemill.NoEffect(nested)}
}

// errForeignOutputs stops a migration from losing what the old way of consuming has stored.
var errForeignOutputs = errors.New("consumer: the outcome holds outputs, which only ProcessOutputs, such as a " +
	"Router's middleware, can publish")

type insideKey struct{}

// inside is a context that shows whose guard it is in.
type inside struct {
	contexts.Child
	inbound *inbound
}

// Value implements [context.Context].
func (i *inside) Value(key any) any {
	switch key {
	case insideKey{}:
		return i.inbound
	case contexts.Outside{}:
		return nil
	}
	return i.Child.Value(key)
}

// insideOf returns the delivery in whose guard a context is, or nil. A broker that keeps contexts may let one outlive
// its delivery. So the key alone does not show that a handler is guarded twice.
func insideOf(ctx context.Context) *inbound {
	in, _ := ctx.Value(insideKey{}).(*inbound)
	return in
}

// errNoHandler keeps a delivery whose scope is incomplete from being guarded under another's.
var errNoHandler = errors.New("consumer: no handler name: set Delivery.Handler; in Watermill a Router names its " +
	"handlers")

// An identified is what was found out about a delivery.
type identified struct {
	call   *oncemill.Call
	source producer.Source // of its ID
	err    error           // why it cannot be guarded
}

// A panicError is a panic of a user's function other than the handler. Its text leaves out what may be a payload.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string {
	return fmt.Sprintf("consumer: an Extractor or the Fingerprint panicked with a %T", e.value)
}

// identify finds out what the delivery is, with functions of the user's.
func (p *Processor) identify(d *Delivery, found *identified) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	call := found.call
	call.MaxWait, call.WaitLimit, call.Stopping = max(p.config.MaxWait, 0), d.WaitLimit, d.Stopping
	call.First = d.Count == 1 && p.system(d) != telemetry.SystemKafka // which does not count
	in := producer.Incoming{Header: d.Header, UUID: d.UUID, Topic: d.Topic, Origin: d.Origin, Position: d.Position,
		Payload: d.Payload}
	identity, err := producer.Extract(in, p.config.Extractors...)
	if d.Header.Get(producer.HeaderPurpose) == producer.PurposeDeadLetter && p.gaveUp(d) {
		return fmt.Errorf("%w: message %q from %q: let what handler %q consumes not include its dead letters",
			ErrOwnDeadLetter, d.Header.Get(producer.HeaderID), d.Topic, d.Handler)
	}
	if err != nil {
		if errors.Is(err, producer.ErrNoID) {
			err = nil
		}
		return &MissingIDError{Topic: d.Topic, Err: err}
	}
	found.source = identity.Source
	call.Key = dedupstore.Key{Tenant: p.config.Tenant, Group: p.config.Group, Handler: d.Handler, ID: identity.ID}
	if err := call.Key.Validate(); err != nil {
		var unusable *dedupstore.InvalidError
		if errors.As(err, &unusable) && unusable.Field == "Key.ID" { // by an extractor of the user's own
			return &MissingIDError{Topic: d.Topic, Err: unusable}
		}
	}
	if call.Fingerprint, err = p.config.Fingerprint(d.Payload); err != nil {
		return &ContentError{Topic: d.Topic, ID: identity.ID, Err: fmt.Errorf("fingerprint: %w", err)}
	}
	if fence := d.Header.Get(producer.HeaderRerun); fence != "" {
		if call.Rerun, err = strconv.ParseUint(fence, 10, 64); err != nil {
			err = fmt.Errorf("header %s: %w", producer.HeaderRerun, err)
			return &ContentError{Topic: d.Topic, ID: identity.ID, Err: err}
		}
	}
	return nil
}

// unguarded deals with a delivery that cannot be guarded.
func (p *Processor) unguarded(ctx context.Context, in *inbound, do work) Decision {
	d, err := *in.delivery, in.found.err
	if p.config.Policy.Shadow {
		o, err := in.measure(ctx, ctx, do, false)
		o.Kind = dedupstore.Succeeded
		return shadowed(oncemill.Result{Status: oncemill.StatusDone, Outcome: o, Bypassed: true}, err)
	}
	var content *ContentError
	var panicked *panicError
	switch {
	case errors.As(err, &panicked): // a mistake of the program's, which says nothing of the message
		pause := p.config.Policy.Backoff.Max
		p.log.ErrorContext(ctx, "oncemill: message cannot be identified: it is not handled, and comes again", "topic",
			d.Topic, "position", d.Position, "error", err, "stack", string(panicked.stack), "again_in", pause)
		return Decision{Action: RetryLater, Delay: pause + jitter(ctx, pause), Keep: true, Err: err}
	case p.bypasses(err):
		return p.bypass(ctx, in, do)
	case errors.Is(err, ErrOwnDeadLetter):
		return p.ownDeadLetter(ctx, d, err)
	case errors.As(err, &content):
		decision := p.undeliverable(ctx, d, content.ID, outcomeRejected, err)
		decision.ID = content.ID
		return decision
	}
	return p.undeliverable(ctx, d, "", outcomeRejected, err)
}

// bypasses reports whether the policy lets the handler run for a delivery that has no ID.
func (p *Processor) bypasses(err error) bool {
	var missing *MissingIDError
	return errors.As(err, &missing) && missing.Err == nil && p.config.Policy.MissingID == oncemill.MissingIDBypass
}

// bypass runs the handler of a message that has no ID unguarded, as the policy says. Its context carries no Run.
func (p *Processor) bypass(ctx context.Context, in *inbound, do work) Decision {
	o, err := p.protect(ctx, in, do)
	_, permanent := marks.Find[*marks.Permanent, *oncemill.Error](err)
	after, delayed := marks.Find[*marks.RetryAfter, *oncemill.Error](err)
	switch {
	case err == nil:
		o.Kind = dedupstore.Succeeded
		return Decision{Action: Ack, Result: oncemill.Result{Status: oncemill.StatusDone, Outcome: o, Bypassed: true}}
	case permanent:
		d := p.undeliverable(ctx, *in.delivery, "", string(dedupstore.Failed), err)
		if d.Action == Reject { // it says that it is final, as the guard's errors do: a PoisonQueue has to know
			o.Kind, o.Reason = dedupstore.Failed, headers.Text(fmt.Sprint(err), dedupstore.MaxReason)
			d.Result = oncemill.Result{Status: oncemill.StatusDone, Outcome: o, Bypassed: true, Handler: err}
			d.Err = &oncemill.Error{Result: d.Result}
		}
		return d
	}
	res := oncemill.Result{Status: oncemill.StatusRetry, Bypassed: true, Wait: p.config.Policy.Backoff.Min, Handler: err}
	if delayed {
		res.Wait = after.Delay
	}
	res.Uncounted = marks.Spares[*oncemill.Error](err) || errors.Is(err, context.Canceled) || interrupted(ctx, err)
	return Decision{Action: RetryLater, Delay: res.Wait, Result: res, Err: &oncemill.Error{Result: res}}
}

// protect turns a panic into an error, as the guard does.
func (p *Processor) protect(ctx context.Context, in *inbound, do work) (o dedupstore.Outcome, err error) {
	defer func() {
		if v := recover(); v != nil {
			e := &oncemill.PanicError{Value: v, Stack: debug.Stack()}
			o, err = dedupstore.Outcome{}, e
			p.log.ErrorContext(ctx, "oncemill: handler panicked on a message without an ID", "error", e, "stack",
				string(e.Stack))
		}
	}()
	return in.measure(ctx, ctx, do, false)
}

func shadowed(res oncemill.Result, err error) Decision {
	if err != nil {
		return Decision{Action: RetryLater, Err: err}
	}
	return Decision{Action: Ack, Result: res}
}

// mismatched is decide's result for a delivery that must be dead-lettered as it is.
const mismatched Action = "mismatch"

// decide makes a decision of how a guarded run ended. Only an outcome is acknowledged.
func (p *Processor) decide(ctx context.Context, d *Delivery, res oncemill.Result, err error) Decision {
	decision := Decision{Action: RetryLater, Delay: res.Wait, Err: err, Result: res}
	switch res.Status {
	case oncemill.StatusDone:
		decision.Action, decision.Err = Ack, res.Failure()
		if decision.Err != nil && p.config.DeadLetters == nil && len(res.Outcome.Produced) == 0 {
			decision.Action = Reject // it has no dead letter
		}
	case oncemill.StatusLost:
		decision.Action = Leave
	case oncemill.StatusMismatch:
		decision.Action = mismatched
	case oncemill.StatusBusy, oncemill.StatusNotDue:
		decision.Delay += jitter(ctx, res.Wait)
	case oncemill.StatusRetry, oncemill.StatusUnpublished:
	default:
		// of the handler's name, or what a fingerprinter made: nothing that another delivery mends
		if _, wrong := err.(*dedupstore.InvalidError); wrong { //nolint:errorlint // the guard's own
			return p.unguardable(d, err)
		}
		pause := p.config.Policy.Backoff.Min // the store is down, or the consumer is shutting down
		decision.Delay, decision.Keep = pause+jitter(ctx, pause), res.Status == oncemill.StatusStoreDown
	}
	return decision
}

// unguardable is the decision for a delivery that cannot be guarded because the program is set up wrongly.
func (p *Processor) unguardable(d *Delivery, err error) Decision {
	p.log.Error("oncemill: message cannot be guarded with this setup: it is kept, and comes again",
		"from", d.Topic, "position", d.Position, "error", err)
	return Decision{Action: RetryLater, Delay: p.config.Policy.Backoff.Max, Keep: true, Err: err}
}

// jitter keeps the copies of a message from coming back all at once.
func jitter(ctx context.Context, d time.Duration) time.Duration {
	return pace.Draw(ctx, d/10+time.Millisecond)
}
