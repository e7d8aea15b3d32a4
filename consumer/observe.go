package consumer

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// TraceMode says how the span of a delivery belongs to the trace of its message.
type TraceMode string

// How the span of a delivery belongs to the trace of its message. Either way it has a link to where the message was
// made. If the context has a span already, such as that of a tracing middleware, that span is its parent.
const (
	TraceParent TraceMode = "parent" // it is part of the message's trace
	TraceLink   TraceMode = "link"   // it begins a trace of its own
)

// withoutClaim returns how to count a delivery that never reaches the guard. Nil: the guard counts it, or an extractor
// panicked.
func (p *Processor) withoutClaim(unidentified error) *telemetry.Answer {
	if _, panicked := errors.AsType[*panicError](unidentified); panicked {
		return nil
	}
	switch {
	case unidentified == nil:
		return nil
	case p.bypasses(unidentified):
		return &telemetry.Answer{Outcome: telemetry.Bypassed, Bypass: telemetry.MissingID}
	}
	return &telemetry.Answer{Outcome: telemetry.Rejected}
}

func (p *Processor) system(d *Delivery) string {
	return cmp.Or(d.System, p.config.System, telemetry.SystemUnknown)
}

// causeOf says why a delivery is a duplicate, if it is one, as far as that can be told.
func (p *Processor) causeOf(d *Delivery) telemetry.Detail {
	switch {
	case d.Count > 1:
		return telemetry.BrokerRedelivery
	case d.Header.Get(producer.HeaderRerun) != "" || d.Header.Get(producer.HeaderPurpose) == producer.PurposeReplay:
		return telemetry.Operator
	case d.Header.Get(producer.HeaderResend) != "":
		return telemetry.RelayResend
	case d.Count == 1 && p.system(d) != telemetry.SystemKafka: // which does not count
		return telemetry.ProducerRetry
	}
	return telemetry.UnknownCause
}

// failureOf says whether a decision is an error, and which. A duplicate is none, even of a failure. Deliveries that
// came too early, or that a shutdown interrupted, are none either.
func failureOf(ctx context.Context, decision *Decision) (telemetry.Failure, error) {
	err, res := decision.Err, &decision.Result
	if err == nil {
		return telemetry.NoFailure, nil
	}
	switch res.Status {
	case oncemill.StatusBusy, oncemill.StatusNotDue:
		return telemetry.NoFailure, nil
	case oncemill.StatusDone, oncemill.StatusRetry:
		if res.Duplicate || res.Uncounted {
			return telemetry.NoFailure, nil
		}
		return handlerFailure(res.Handler), err
	case oncemill.StatusLost:
		return telemetry.FailedClaimLost, err
	case oncemill.StatusMismatch:
		return telemetry.FailedMismatch, err
	case oncemill.StatusStoreDown:
		return telemetry.FailedStore, err
	case oncemill.StatusUnrecorded:
		return telemetry.FailedUnrecorded, err
	case oncemill.StatusUnpublished:
		return telemetry.FailedUnpublished, err
	}
	switch err.(type) { //nolint:errorlint // the consumer's own
	case *MissingIDError, *ContentError:
		return telemetry.FailedRejected, err
	}
	if errors.Is(err, ErrOwnDeadLetter) {
		return telemetry.FailedRejected, err
	}
	if decision.Action == RetryLater && (errors.Is(err, context.Canceled) || interrupted(ctx, err)) {
		return telemetry.NoFailure, nil
	}
	return handlerFailure(err), err
}

// interrupted reports whether an error is, or wraps, why the context ended, as with the grace of a shutdown or with a
// partition that was revoked. A deadline is no interruption.
func interrupted(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	return cause != nil && errors.Is(err, cause) && !errors.Is(cause, context.DeadlineExceeded)
}

// handlerFailure returns the kind of a handler's error. It looks through wrapped errors from the outside, as the
// guard does, but not into those of other guards.
func handlerFailure(err error) telemetry.Failure {
	if err == nil {
		return telemetry.NoFailure
	}
	if found := marked(err); found != telemetry.NoFailure {
		return found
	}
	switch {
	case errors.Is(err, oncemill.ErrClaimLost):
		return telemetry.FailedClaimLost
	case errors.Is(err, context.DeadlineExceeded):
		return telemetry.FailedTimeout
	case errors.Is(err, context.Canceled):
		return telemetry.FailedCanceled
	}
	return telemetry.FailedOther
}

func marked(err error) telemetry.Failure {
	for err != nil {
		if err == oncemill.ErrNoResult { //nolint:errorlint // this is the search
			return telemetry.FailedNested
		}
		switch err.(type) { //nolint:errorlint // so is this
		case interface{ Permanent() bool }:
			return telemetry.FailedPermanently
		case interface{ RetryAfter() time.Duration }:
			return telemetry.FailedRetryAfter
		case interface{ NoEffect() bool }:
			return telemetry.FailedNoEffect
		case *oncemill.PanicError:
			return telemetry.FailedPanic
		case *oncemill.Error, *guardedTwiceError:
			return telemetry.FailedNested
		}
		switch e := err.(type) { //nolint:errorlint // so is this
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, wrapped := range e.Unwrap() {
				if found := marked(wrapped); found != telemetry.NoFailure {
					return found
				}
			}
			return telemetry.NoFailure
		default:
			return telemetry.NoFailure
		}
	}
	return telemetry.NoFailure
}
