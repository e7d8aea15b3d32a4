package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// Errors are read in logs, without the code at hand: each says what happened, to which message, and has each prefix once.
func TestErrors_Texts(t *testing.T) {
	t.Parallel()
	missing := &dedupstore.SetupError{Package: "pgstore", Subject: "table oncemill_dedup", Problem: "is missing: call Migrate"}
	declined := errors.New("card declined")
	_, invalidPolicy := oncemill.NewGuard(newStore(t), oncemill.Policy{MaxAttempts: -1})
	_, noStore := oncemill.NewGuard(nil, oncemill.Policy{})
	_, fromLowerFloor := newGuard(t, newStore(t), oncemill.Policy{}).Run(t.Context(), oncemill.Call{}, nil)
	answer := func(res oncemill.Result) error { return &oncemill.Error{Result: res, Key: key("m1")} }
	failed := func(o dedupstore.Outcome) error {
		return oncemill.Result{Status: oncemill.StatusDone, Outcome: o}.Failure()
	}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{
			answer(oncemill.Result{Status: oncemill.StatusStoreDown, Err: fmt.Errorf("claim: %w", missing)}),
			`oncemill: message "m1": claim: pgstore: table oncemill_dedup is missing: call Migrate`,
		},
		{
			answer(oncemill.Result{Status: oncemill.StatusUnrecorded, Err: missing}),
			`oncemill: handler of message "m1" succeeded, but the outcome could not be stored: ` +
				`pgstore: table oncemill_dedup is missing: call Migrate`,
		},
		{
			answer(oncemill.Result{Status: oncemill.StatusUnrecorded, Handler: declined, Err: missing}),
			`oncemill: handler of message "m1" failed (card declined), but the outcome could not be stored: ` +
				`pgstore: table oncemill_dedup is missing: call Migrate`,
		},
		{
			answer(oncemill.Result{Status: oncemill.StatusMismatch}),
			`oncemill: message ID "m1" was used before with other content`,
		},
		{
			answer(oncemill.Result{Status: oncemill.StatusBusy, Wait: time.Second}),
			"oncemill: in progress elsewhere, lease ends in 1s",
		},
		{
			answer(oncemill.Result{Status: oncemill.StatusNotDue, Wait: time.Second}),
			"oncemill: retry is not due for 1s",
		},
		{
			answer(oncemill.Result{Status: oncemill.StatusRetry, Attempt: 2, Wait: time.Second, Handler: declined}),
			"oncemill: attempt 2 failed, retry in 1s: card declined",
		},
		{failed(dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "card declined"}), "oncemill: failed: card declined"},
		{
			failed(dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true, Reason: "card declined"}),
			"oncemill: failed, attempts exhausted: card declined",
		},
		{
			failed(dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: "lease expired"}),
			"oncemill: ended with unknown outcome: lease expired",
		},
		{
			answer(oncemill.Result{Status: oncemill.StatusUnpublished, Err: declined}),
			"oncemill: publish what the run produced: card declined",
		},
		{answer(oncemill.Result{Status: oncemill.StatusLost}), "dedupstore: claim lost"},
		{
			answer(oncemill.Result{Status: oncemill.StatusLost, Handler: declined}),
			"dedupstore: claim lost; handler: card declined",
		},
		{oncemill.Run{}.FenceApplied(0), "oncemill: no row was written under the fence: the run is not guarded and has no fence"},
		{
			oncemill.Run{Fence: 7}.FenceApplied(0),
			"oncemill: no row was written under the fence 7: this run or a newer one has written it, or it does not exist",
		},
		{oncemill.NoEffect(oncemill.Uncounted(oncemill.Permanent(oncemill.RetryAfter(0, declined)))), "card declined"},
		{invalidPolicy, "oncemill: Policy.MaxAttempts is -1, want at least 1"},
		{noStore, "oncemill: store is nil"},
		{fromLowerFloor, "dedupstore: Key.Tenant is empty"},
		{&dedupstore.InvalidError{Field: "Key.ID", Problem: "is empty"}, "oncemill: Key.ID is empty"},
	} {
		if got := tc.err.Error(); got != tc.want {
			t.Errorf("%T says\n%s\nwant\n%s", tc.err, got, tc.want)
		}
	}
}

func TestNewGuard_RefusesANilThatAnInterfaceHides(t *testing.T) {
	t.Parallel()
	for field, hidden := range map[string]oncemill.Telemetry{
		"TracerProvider": {TracerProvider: (*tracenoop.TracerProvider)(nil)},
		"MeterProvider":  {MeterProvider: (*metricnoop.MeterProvider)(nil)},
		"Propagator":     {Propagator: (*propagation.TraceContext)(nil)},
	} {
		_, err := oncemill.NewGuard(newStore(t), oncemill.Policy{Telemetry: hidden})
		if e := as[*dedupstore.InvalidError](t, err); e.Field != "Policy.Telemetry."+field {
			t.Errorf("%v, want it to name %s", err, field)
		}
	}
	_, err := oncemill.NewGuard((*dedupstore.Memory)(nil), oncemill.Policy{})
	if e := as[*dedupstore.InvalidError](t, err); e.Field != "store" {
		t.Error(err)
	}
}

func TestDo_RefusesToDoNothing(t *testing.T) {
	t.Parallel()
	_, err := oncemill.Do(t.Context(), nil, call("1"), func(context.Context) (int, error) { return 0, nil })
	if e := as[*dedupstore.InvalidError](t, err); e.Field != "guard" {
		t.Error(err)
	}
	_, err = oncemill.Do[int](t.Context(), newGuard(t, newStore(t), oncemill.Policy{}), call("1"), nil)
	if e := as[*dedupstore.InvalidError](t, err); e.Field != "fn" {
		t.Error(err)
	}
}
