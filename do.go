package oncemill

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/oncemill/oncemill/dedupstore"
)

// Do runs fn once for a key and gives its result to every later call within the dedup window. Use it for jobs, requests
// and tool calls that have no message broker.
//
// The key's ID names the action, not the attempt. Make it by producer.DeriveID if the action has an identity of its
// own, or by producer.CallID for a tool call of a model. In fn, use FromContext(ctx).ID(name) as the idempotency key of
// calls to others. It is the same in each run of the key. So if a run dies after its effect, services that honour the
// key make no second effect.
//
// Take one guard for each class of action: LowValue where a repetition is a nuisance, HighValue where it costs money,
// Irreversible where nobody could take it back. An action that may be repeated without harm needs no guard. Examples
// are a read, a write that sets a value, and a call with a key that the other side honours for long enough. A guard
// would only add an answer that grows old, and waits.
//
// Results travel as JSON and outlive deployments. A member that T does not have any more is passed over without an
// error, and a member that is missing is a zero value. So change T by adding members, and read a zero in those as "not
// known". For work that may end half done return a Partial.
//
// A stored failure is an *Error with StatusDone for the first caller and every later one. A key that has another owner
// is one with StatusBusy and the time that remains (Wait), after Call.MaxWait. A success whose result cannot be given
// to a later caller is ErrNoResult: the work is done. All other errors are those of Guard.Run; fn may run again after
// any of them.
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
	var stored T // and value is of a run that was rolled back, if there was one
	if err := json.Unmarshal(res.Outcome.Result, &stored); err != nil {
		return zero, fmt.Errorf("%w: what is stored does not decode: %w", ErrNoResult, err)
	}
	return stored, nil
}

// marshal is json.Marshal for values whose MarshalJSON may panic. The work is done and must not be done again because
// of a panic here.
func marshal(v any) (data []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			data, err = nil, &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return json.Marshal(v)
}
