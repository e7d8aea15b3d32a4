package oncemill

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/oncemill/oncemill/dedupstore"
)

// Do runs fn once for a key and gives its result to every later call within the dedup window: for jobs, requests and
// tool calls that have no message broker. The result travels as JSON; Partial is one for work that may end half done.
// Results outlive deployments: as encoding/json reads them, a member that T has no more, or under another name, is
// passed over without an error, and a later caller gets a zero value for it. So change T by adding members, and take a
// zero in those for "not known".
//
// The key's ID names the action, not the attempt: producer.DeriveID for one that has an identity of its own,
// producer.CallID for a tool call of a model. In fn, FromContext(ctx).ID(name) is the idempotency key for calls to
// others: the same in each run of the key, so that a run that died after its effect is no second effect for those who
// honour it.
//
// The guard's policy is the class of the action, so there is one guard for each: LowValue where a repetition is a
// nuisance, HighValue where it costs money, Irreversible where nobody could take it back. What has the same effect
// however often it is done needs none of this: reads, writes that set a value, calls that carry a key which the other
// side honours for as long as anybody may repeat them. A guard would only add an answer that grows old, and a
// BusyError.
//
// A failure that is stored is a *FailedError for the first caller and every later one. A key that has another owner is
// a *BusyError with the time that remains, after Call.MaxWait. A success whose result cannot be given to a later caller
// is ErrNoResult: the work is done. All other errors are as of Guard.Run; fn may run again after any of them.
func Do[T any](ctx context.Context, g *Guard, call Call, fn func(ctx context.Context) (T, error)) (T, error) {
	var value, zero T
	switch {
	case g == nil:
		return zero, invalid("guard", "is nil")
	case fn == nil: // it would be run, and fail for good
		return zero, invalid("fn", "is nil")
	case call.DeadLetter != nil && call.Publish == nil:
		return zero, invalid("Call.Publish",
			"is nil although Call.DeadLetter is set: Do cannot leave publishing to its caller")
	}
	res, err := g.Run(ctx, call, func(ctx context.Context) (dedupstore.Outcome, error) {
		v, err := fn(ctx)
		if err != nil {
			return dedupstore.Outcome{}, err
		}
		value = v
		data, err := marshal(v)
		if err != nil { // the work is done: later callers get to know that, if not the result
			g.log.ErrorContext(ctx, "oncemill: result cannot be stored for duplicates",
				"id", call.Key.ID, "key", call.Key.String(), "error", err)
			return dedupstore.Outcome{Truncated: true}, nil
		}
		return dedupstore.Outcome{Result: data}, nil
	})
	if err != nil {
		return zero, err
	}
	if res.Publication != nil {
		res.Publication.Abandon()
		return zero, invalid("Call.Publish",
			"is nil although the key's outcome produced messages: Do cannot leave publishing to its caller")
	}
	if err := res.Failure(); err != nil {
		return zero, err
	}
	if !res.Duplicate {
		return value, nil
	}
	if res.Outcome.Truncated {
		return zero, fmt.Errorf("%w: it was too large to be stored, or found no room", ErrNoResult)
	}
	if err := json.Unmarshal(res.Outcome.Result, &value); err != nil {
		return zero, fmt.Errorf("%w: what is stored does not decode: %w", ErrNoResult, err)
	}
	return value, nil
}

// marshal is json.Marshal for values whose MarshalJSON may panic: the work is done, and is not to be done again for
// that.
func marshal(v any) (data []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			data, err = nil, &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return json.Marshal(v)
}
