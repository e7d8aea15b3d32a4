package oncemilltest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/oncemilltest"
)

var (
	errDeclined = errors.New("declined")
	errBusy     = errors.New("bank is busy")
)

// scenarios are the methods of a Case.
var scenarios = map[string]func(oncemilltest.Case, context.Context) (int, error){
	"Once": func(c oncemilltest.Case, ctx context.Context) (int, error) {
		return 1, c.Once(ctx)
	},
	"Twice": oncemilltest.Case.Twice, "Together": oncemilltest.Case.Together,
	"CrashAfterEffect": oncemilltest.Case.CrashAfterEffect, "FailThenSucceed": oncemilltest.Case.FailThenSucceed,
}

// A want is how a scenario ends over a leased claim and over an inbox.
type want struct {
	runs, leased, inbox int // runs, and effects
	err                 string
}

func TestCase_RunsAndEffects(t *testing.T) {
	for _, tc := range []struct {
		name   string
		policy oncemill.Policy
		then   func(run int) error // what the handler returns after its effect
		want   map[string]want
	}{
		{"a handler that succeeds", oncemill.Policy{}, nil, map[string]want{
			"Once":             {runs: 1, leased: 1, inbox: 1},
			"Twice":            {runs: 1, leased: 1, inbox: 1},
			"Together":         {runs: 1, leased: 1, inbox: 1},
			"CrashAfterEffect": {runs: 2, leased: 2, inbox: 1},
			"FailThenSucceed":  {runs: 2, leased: 2, inbox: 1},
		}},
		{"at most once", oncemill.Irreversible(), nil, map[string]want{
			"Once":             {runs: 1, leased: 1, inbox: 1},
			"Twice":            {runs: 1, leased: 1, inbox: 1},
			"Together":         {runs: 1, leased: 1, inbox: 1},
			"CrashAfterEffect": {runs: 1, leased: 1, inbox: 0, err: "unknown outcome"},
			"FailThenSucceed":  {runs: 1, leased: 1, inbox: 0, err: "unknown outcome"},
		}},
		{"its last attempt", oncemill.Policy{MaxAttempts: 1}, nil, map[string]want{
			"CrashAfterEffect": {runs: 1, leased: 1, inbox: 0, err: "attempts exhausted"},
			"FailThenSucceed":  {runs: 1, leased: 1, inbox: 0, err: "made to fail"},
		}},
		{"a handler that fails for good", oncemill.Policy{},
			func(int) error { return oncemill.Permanent(errDeclined) },
			map[string]want{
				"Once":             {runs: 1, leased: 1, inbox: 0, err: "declined"},
				"Twice":            {runs: 1, leased: 1, inbox: 0, err: "declined"},
				"Together":         {runs: 1, leased: 1, inbox: 0, err: "declined"},
				"CrashAfterEffect": {runs: 1, leased: 1, inbox: 0, err: "declined"},
				"FailThenSucceed":  {runs: 1, leased: 1, inbox: 0, err: "declined"},
			}},
		{"a handler that fails once", oncemill.Policy{},
			func(run int) error {
				if run == 1 {
					return oncemill.RetryAfter(time.Hour, errBusy)
				}
				return nil
			},
			map[string]want{
				"Once":             {runs: 1, leased: 1, inbox: 0, err: "busy"},
				"Twice":            {runs: 2, leased: 2, inbox: 1},
				"Together":         {runs: 2, leased: 2, inbox: 1, err: "busy"},
				"CrashAfterEffect": {runs: 1, leased: 1, inbox: 0, err: "busy"}, // it did not come to the crash
				"FailThenSucceed":  {runs: 2, leased: 2, inbox: 1},
			}},
		{"a handler that always fails", oncemill.Policy{},
			func(run int) error { return fmt.Errorf("run %d: %w", run, errBusy) },
			map[string]want{
				"Twice":           {runs: 2, leased: 2, inbox: 0, err: "run 2: bank is busy"},
				"FailThenSucceed": {runs: 2, leased: 2, inbox: 0, err: "run 2: bank is busy"},
			}},
		{"a handler that panics", oncemill.Policy{}, func(int) error { panic(errBusy) }, map[string]want{
			"Twice":            {runs: 2, leased: 2, inbox: 0, err: "busy"},
			"CrashAfterEffect": {runs: 1, leased: 1, inbox: 0, err: "busy"},
		}},
	} {
		for method, want := range tc.want {
			t.Run(tc.name+"/"+method, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					inTime(t)
					b := newBooks(t)
					leased := oncemilltest.Case{Policy: tc.policy, Handler: b.handler(tc.then)}
					want.check(t, leased, method)
					if b.made != want.leased {
						t.Errorf("leased: %d effects, want %d", b.made, want.leased)
					}
					b.calls = 0
					inbox := oncemilltest.Case{Policy: tc.policy, Store: b.inbox, Handler: b.handler(tc.then)}
					want.check(t, inbox, method)
					if rows := b.inbox.All()["row"]; rows != want.inbox {
						t.Errorf("inbox: %d effects, want %d", rows, want.inbox)
					}
				})
			})
		}
	}
}

// inTime fails a test that waits for a lease or a backoff.
func inTime(t *testing.T) {
	began := time.Now()
	t.Cleanup(func() {
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %v of virtual time", took)
		}
	})
}

func (w want) check(t *testing.T, c oncemilltest.Case, method string) {
	t.Helper()
	runs, err := scenarios[method](c, t.Context())
	if runs != w.runs {
		t.Errorf("%d runs, want %d", runs, w.runs)
	}
	if (err == nil) != (w.err == "") || err != nil && !strings.Contains(err.Error(), w.err) {
		t.Errorf("error %v, want one with %q", err, w.err)
	}
}

// books count the effects of a handler: those made outside of a database, and rows of an inbox.
type books struct {
	inbox *storetest.MemoryInbox

	mu          sync.Mutex
	calls, made int
}

func newBooks(t *testing.T) *books {
	t.Helper()
	return &books{inbox: storetest.NewMemoryInbox(newMemory(t))}
}

func newMemory(t *testing.T) *dedupstore.Memory {
	t.Helper()
	records, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func (b *books) handler(then func(run int) error) func(context.Context) error {
	return func(ctx context.Context) error {
		b.mu.Lock()
		b.calls++
		run := b.calls
		b.made++
		b.mu.Unlock()
		if err := b.inbox.Write(ctx, "row"); err != nil && !errors.Is(err, storetest.ErrNoTx) {
			return err
		}
		if then == nil {
			return nil
		}
		return then(run)
	}
}

// answers are those that a store gives to claims. A broken store grants each claim.
type answers struct {
	dedupstore.Store
	broken bool

	mu       sync.Mutex
	statuses map[dedupstore.Status]int
}

func (a *answers) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	if a.broken {
		for i := range requests {
			requests[i].Key.ID = requests[i].Owner
		}
	}
	results := a.Store.Claim(ctx, requests)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range results {
		a.statuses[r.Answer.Status]++
	}
	return results
}

func TestCase_TogetherAsksForBothBeforeOneRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &answers{Store: newMemory(t), statuses: map[dedupstore.Status]int{}}
		runs, err := oncemilltest.Case{Store: store, Handler: func(context.Context) error {
			store.mu.Lock()
			defer store.mu.Unlock()
			if store.statuses[dedupstore.Busy] != 1 {
				t.Errorf("the handler runs after %v, want a copy that found it busy", store.statuses)
			}
			return nil
		}}.Together(t.Context())
		if runs != 1 || err != nil {
			t.Errorf("%d runs, %v", runs, err)
		}
		if store.statuses[dedupstore.Done] != 1 {
			t.Errorf("answers %v, want a copy that got the outcome", store.statuses)
		}
	})
}

func TestCase_NoticesAStoreThatGrantsEachClaim(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"Twice", "Together"} {
		store := &answers{Store: newMemory(t), statuses: map[dedupstore.Status]int{}, broken: true}
		c := oncemilltest.Case{Store: store, Handler: func(context.Context) error { return nil }}
		if runs, err := scenarios[method](c, t.Context()); runs != 2 || err != nil {
			t.Errorf("%s: %d runs, %v; want to see both", method, runs, err)
		}
	}
}

// A run longer than the lease is extended while it runs, and not any more when its process has died.
func TestCase_LongRunThatCrashesIsTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) dedupstore.Store{
		"leased": func(t *testing.T) dedupstore.Store { return newMemory(t) },
		"inbox":  func(t *testing.T) dedupstore.Store { return newBooks(t).inbox },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var starts []time.Duration
				began := time.Now()
				runs, err := oncemilltest.Case{Store: open(t), Handler: func(ctx context.Context) error {
					starts = append(starts, time.Since(began))
					if run := oncemill.FromContext(ctx); run.Attempt != len(starts) {
						t.Errorf("run %d is attempt %d", len(starts), run.Attempt)
					}
					time.Sleep(time.Minute)
					return ctx.Err()
				}}.CrashAfterEffect(t.Context())
				if runs != 2 || err != nil {
					t.Fatalf("%d runs, %v", runs, err)
				}
				if gap := starts[1] - time.Minute; gap > time.Second {
					t.Errorf("the second run began %v after the crash", gap)
				}
			})
		})
	}
}

func TestCase_EachDeliveryHasTheSameRunID(t *testing.T) {
	t.Parallel()
	ids := map[string]int{}
	c := oncemilltest.Case{Handler: func(ctx context.Context) error {
		ids[oncemill.FromContext(ctx).ID("charge")]++
		return nil
	}}
	for range 2 {
		if _, err := c.CrashAfterEffect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(ids) != 2 {
		t.Errorf("two messages ran under %d IDs", len(ids))
	}
	for id, runs := range ids {
		if runs != 2 {
			t.Errorf("ID %s is that of %d runs, want 2", id, runs)
		}
	}
}

func TestCase_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	nop := func(context.Context) error { return nil }
	for _, tc := range []struct {
		want string
		c    oncemilltest.Case
	}{
		{"oncemilltest: Case.Handler is nil: give it the handler", oncemilltest.Case{}},
		{"oncemilltest: Case.Store holds a nil pointer: leave it out",
			oncemilltest.Case{Handler: nop, Store: (*dedupstore.Memory)(nil)}},
		{"oncemill: Policy.Lease is 1ns, want at least",
			oncemilltest.Case{Handler: nop, Policy: oncemill.Policy{Lease: 1}}},
		{"bank is busy", oncemilltest.Case{Handler: nop, Store: failing{}}},
	} {
		for method, scenario := range scenarios {
			synctest.Test(t, func(t *testing.T) {
				if _, err := scenario(tc.c, t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: %v, want %q", method, err, tc.want)
				}
			})
		}
	}
}

func TestCase_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for method, scenario := range scenarios {
		c := oncemilltest.Case{Handler: func(context.Context) error { return nil }}
		if _, err := scenario(c, ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want %v", method, err, context.Canceled)
		}
	}
}

// failing is a store that does not answer.
type failing struct{ dedupstore.Store }

func (failing) Claim(_ context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	for i := range results {
		results[i].Err = errBusy
	}
	return results
}

func TestCase_CrashNeedsARecord(t *testing.T) {
	t.Parallel()
	runs, err := oncemilltest.Case{
		Store: failing{}, Policy: oncemill.Policy{StoreDown: oncemill.FailOpen},
		Handler: func(context.Context) error { return nil },
	}.CrashAfterEffect(t.Context())
	if runs != 1 || err == nil || !strings.Contains(err.Error(), "start it") {
		t.Errorf("%d runs, %v; want to be told that nothing crashed", runs, err)
	}
}

func TestContext_FillsInWhatIsZero(t *testing.T) {
	t.Parallel()
	mine := oncemill.Run{
		Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "order-17"},
		Fence: 7, Attempt: 3,
	}
	if got := oncemill.FromContext(oncemilltest.Context(t.Context(), mine)); got != mine {
		t.Errorf("%+v, want %+v", got, mine)
	}
	first := oncemill.FromContext(oncemilltest.Context(t.Context(), oncemill.Run{}))
	if err := first.Key.Validate(); err != nil || first.Fence != 1 || first.Attempt != 1 {
		t.Errorf("%+v, %v; want the first run of a message", first, err)
	}
}

// unfit is a store whose tables are missing.
type unfit struct{ dedupstore.Store }

func (unfit) Check(context.Context) (dedupstore.Report, error) {
	return dedupstore.Report{}, &dedupstore.SetupError{Package: "x", Subject: "table", Problem: "is missing"}
}

func TestCase_AStoreThatIsNotSetUpIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	c := oncemilltest.Case{Store: unfit{memory}, Handler: func(context.Context) error { return nil }}
	runs, err := c.Twice(t.Context())
	if _, setup := errors.AsType[*dedupstore.SetupError](err); !setup || runs != 0 {
		t.Errorf("%d runs, %v; want none, and what is missing", runs, err)
	}
}
