package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A Processor makes handlers safe to be given the same message again. It is safe for concurrent use.
type Processor struct {
	guard  *oncemill.Guard
	config Config
	policy oncemill.Policy
	log    *slog.Logger
	meter  *telemetry.Meter

	mu       sync.Mutex
	closing  bool
	closed   chan struct{}
	watchers sync.WaitGroup
}

// New returns a Processor that keeps its records in store. The error names the field of the config that is wrong.
func New(store dedupstore.Store, config Config) (*Processor, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	guard, err := oncemill.NewGuard(store, config.Policy)
	if err != nil {
		return nil, err
	}
	meter, err := telemetry.NewMeter()
	if err != nil {
		return nil, fmt.Errorf("consumer: make instruments: %w", err)
	}
	policy := guard.Policy()
	return &Processor{
		guard: guard, config: config, policy: policy, log: policy.Logger, meter: meter, closed: make(chan struct{}),
	}, nil
}

// Check asks the store to look at its server: see oncemill.Guard.Check.
func (p *Processor) Check(ctx context.Context) (dedupstore.Report, error) { return p.guard.Check(ctx) }

// Process guards one delivery to a handler, and says what to do with it. It is the whole of a consumer, without a
// broker: transports carry its decisions out. It blocks while the handler runs, and for up to Config.Hold before.
func (p *Processor) Process(ctx context.Context, d Delivery, handle Handler) Decision {
	return p.process(ctx, d, func(ctx context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{}, handle(ctx)
	})
}

// insideKey is the context key of the delivery that is being guarded. bypassKey marks a run that is not guarded.
type (
	insideKey struct{}
	bypassKey struct{}
)

// errNoHandler keeps a delivery whose scope is incomplete from being guarded under another's.
var errNoHandler = errors.New("consumer: no handler name: set Config.Handler, or add the middleware to a Router")

// process is Process for handlers with outputs. A decision to Ack whose Result has a Publication leaves it to the
// caller to publish first.
func (p *Processor) process(ctx context.Context, d Delivery, run oncemill.RunFunc) Decision {
	this := [...]string{d.Handler, d.Topic, d.UUID, d.Header.Get(producer.HeaderID)}
	if ctx.Value(insideKey{}) == this {
		return Decision{Action: RetryLater, Err: oncemill.NoEffect(&NestedError{Handler: d.Handler})}
	}
	ctx = context.WithValue(ctx, insideKey{}, this)
	if p.config.Handler != "" {
		d.Handler = p.config.Handler
	}
	if d.Handler == "" {
		return Decision{Action: RetryLater, Delay: p.policy.Backoff.Max, Err: errNoHandler}
	}

	call, err := p.identify(d)
	if err != nil {
		return p.unidentified(ctx, d, err, run)
	}
	res, err := p.guard.Run(ctx, call, run)
	if p.policy.Shadow {
		return shadowed(res, err)
	}
	decision := p.decide(res, err)
	var mismatch *oncemill.MismatchError
	switch {
	case errors.As(err, &mismatch):
		return p.undeliverable(ctx, d, call.Key.ID, outcomeMismatch, err)
	case decision.Action == Ack && res.Publication != nil && res.Outcome.Kind != dedupstore.Succeeded:
		return p.publishDeadLetters(ctx, decision)
	}
	return decision
}

// identify finds out what the delivery is.
func (p *Processor) identify(d Delivery) (oncemill.Call, error) {
	call := oncemill.Call{Hold: p.config.Hold}
	in := producer.Incoming{Header: d.Header, UUID: d.UUID, Topic: d.Topic, Position: d.Position, Payload: d.Payload}
	identity, err := producer.Extract(in, p.config.Extractors...)
	if err != nil {
		if errors.Is(err, producer.ErrNoID) {
			err = nil
		}
		return call, &MissingIDError{Topic: d.Topic, Err: err}
	}
	call.Key = dedupstore.Key{Tenant: p.config.Tenant, Group: p.config.Group, Handler: d.Handler, ID: identity.ID}
	var unusable *dedupstore.InvalidError
	if errors.As(call.Key.Validate(), &unusable) && unusable.Field == "Key.ID" { // by an extractor of the user's own
		return call, &MissingIDError{Topic: d.Topic, Err: unusable}
	}
	if call.Fingerprint, err = p.config.Fingerprint(d.Payload); err != nil {
		return call, &ContentError{Topic: d.Topic, ID: identity.ID, Err: fmt.Errorf("fingerprint: %w", err)}
	}
	if fence := d.Header.Get(producer.HeaderRerun); fence != "" {
		if call.Rerun, err = strconv.ParseUint(fence, 10, 64); err != nil {
			return call, &ContentError{Topic: d.Topic, ID: identity.ID, Err: fmt.Errorf("header %s: %w", producer.HeaderRerun, err)}
		}
	}
	if p.config.DeadLetters != nil {
		call.DeadLetter = func(o dedupstore.Outcome, attempt int, fence uint64) []dedupstore.Produced {
			return []dedupstore.Produced{p.deadLetter(d, call.Key, o, attempt, fence)}
		}
	}
	return call, nil
}

// unidentified deals with a delivery that cannot be guarded.
func (p *Processor) unidentified(ctx context.Context, d Delivery, err error, run oncemill.RunFunc) Decision {
	var missing *MissingIDError
	bypass := p.policy.Shadow || errors.As(err, &missing) && missing.Err == nil && p.policy.MissingID == oncemill.MissingIDBypass
	if !bypass {
		id := ""
		var content *ContentError
		if errors.As(err, &content) {
			id = content.ID
		}
		return p.undeliverable(ctx, d, id, outcomeRejected, err)
	}
	p.meter.Claim(ctx, p.config.Group, d.Handler, telemetry.Bypassed, 0, 0)
	o, err := run(context.WithValue(ctx, bypassKey{}, true))
	o.Kind = dedupstore.Succeeded
	if p.policy.Shadow {
		return shadowed(oncemill.Result{Outcome: o, Bypassed: true}, err)
	}
	if err != nil {
		return Decision{Action: RetryLater, Delay: p.policy.Backoff.Min, Err: err}
	}
	return Decision{Action: Ack, Result: oncemill.Result{Outcome: o, Bypassed: true}}
}

func shadowed(res oncemill.Result, err error) Decision {
	if err != nil {
		return Decision{Action: RetryLater, Err: err}
	}
	return Decision{Action: Ack, Result: res}
}

// decide turns how a guarded run ended into what to do with the delivery. Only an outcome is acknowledged.
func (p *Processor) decide(res oncemill.Result, err error) Decision {
	var (
		busy        *oncemill.BusyError
		retry       *oncemill.RetryError
		unpublished *oncemill.UnpublishedError
		unrecorded  *oncemill.UnrecordedError
	)
	switch {
	case err == nil && res.Outcome.Kind == dedupstore.Succeeded:
		return Decision{Action: Ack, Result: res}
	case err == nil && p.config.DeadLetters == nil:
		return Decision{Action: Reject, Err: res.Failure(), Result: res}
	case err == nil:
		return Decision{Action: Ack, Err: res.Failure(), Result: res}
	case errors.As(err, &retry):
		return Decision{Action: RetryLater, Delay: retry.Delay, Err: err}
	case errors.As(err, &busy):
		return Decision{Action: RetryLater, Delay: busy.Wait + jitter(busy.Wait), Err: err}
	case errors.As(err, &unpublished):
		return Decision{Action: RetryLater, Delay: unpublished.Delay, Err: err}
	case errors.Is(err, oncemill.ErrClaimLost) && !errors.As(err, &unrecorded): // the guard's word, not a handler's
		return Decision{Action: Leave, Err: err}
	}
	pause := p.policy.Backoff.Min // the store is down, or the consumer is shutting down
	return Decision{Action: RetryLater, Delay: pause + jitter(pause), Err: err}
}

// jitter keeps the copies of a message from coming back all at once.
func jitter(d time.Duration) time.Duration { return rand.N(d/10 + time.Millisecond) }
