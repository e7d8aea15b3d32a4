package rpctest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/rpc"
)

// Run tests a library.
func Run(t *testing.T, lib Library) {
	s := suite{lib}
	for name, test := range map[string]func(*testing.T){
		"a repeat gets the stored response":                  s.repeat,
		"keys are read as over HTTP":                         s.keys,
		"accounts, methods and groups are kept apart":        s.apart,
		"a call that runs is a conflict":                     s.inProgress,
		"calls may wait for the response of the first":       s.waiting,
		"statuses are outcomes":                              s.statuses,
		"other errors release the key":                       s.errors,
		"errors that steer":                                  s.steering,
		"harmless refusals give the key back":                s.released,
		"released failures of the server count":              s.releasedFailures,
		"a panic goes on and releases the key":               s.panics,
		"a parked run is answered with an unknown outcome":   s.parked,
		"a client that goes does not stop the run":           s.leaving,
		"a run ends some time after its client":              s.lingering,
		"without a store nothing runs":                       s.storeDown,
		"a run that lost its claim does not count":           s.claimLost,
		"a response that cannot be stored is sent":           s.unrecorded,
		"a record of another program is no response":         s.foreign,
		"a response over the limit is sent once":             s.tooLarge,
		"metadata is kept by name, credentials are not":      s.metadata,
		"what goes past the guard":                           s.passing,
		"keys in a field":                                    s.fields,
		"responses that nobody can ask for are not stored":   s.unasked,
		"2,000 equal calls at once make one run":             s.crowd,
		"over an inbox/writes and response appear together":  s.inbox,
		"over an inbox/every error rolls back":               s.inboxErrors,
		"over an inbox/a repeated transaction":               s.inboxAgain,
		"over an inbox/a response over the limit is refused": s.inboxTooLarge,
		"over an inbox/commits that fail":                    s.inboxFaults,
		"a client keeps its key over retries":                s.client,
		"a client knows what counts":                         s.clientCounts,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

const (
	ok, unknown, invalidArgument, alreadyExists, permissionDenied = 0, 2, 3, 6, 7
	failedPrecondition, aborted, unimplemented, internal          = 9, 10, 12, 13
	notFound, resourceExhausted, unavailable                      = 5, 8, 14
)

// charging is a handler that has an effect and says which.
func charging(l *keytest.Ledger) Handler {
	return func(ctx context.Context, procedure, value string) (string, error) {
		run := oncemill.FromContext(ctx)
		l.Add(run.Key.ID)
		return "charged " + value + " " + run.ID("payments"), nil
	}
}

// shop is a service that charges.
func (s suite) shop(t testing.TB, set rpc.Settings) (*Rig, *keytest.Ledger) {
	t.Helper()
	l := &keytest.Ledger{}
	return s.memory(t, set, charging(l)), l
}

// answering returns one error after another, the last one for ever.
func answering(l *keytest.Ledger, results ...error) Handler {
	return func(context.Context, string, string) (string, error) {
		n := l.Add("")
		return "run " + strconv.Itoa(n), results[min(n, len(results))-1]
	}
}

func (s suite) repeat(t *testing.T) {
	rg, l := s.shop(t, rpc.Settings{})
	first, again := rg.pay("k"), rg.pay("k")
	want(t, first, ok, false)
	want(t, again, ok, true)
	if first.Value == "" || again.Value != first.Value {
		t.Errorf("%q, then %q", first.Value, again.Value)
	}
	wantRefusal(t, rg.send(Pay, "101", "idempotency-key", "k"), failedPrecondition, "KEY_REUSED")
	want(t, rg.send(Pay, "101", "idempotency-key", "k2"), ok, false)
	want(t, rg.pay("k", "user-agent-of", "other"), ok, true)
	keytest.WantRuns(t, l, 2)
}

func (s suite) keys(t *testing.T) {
	rg, l := s.shop(t, rpc.Settings{})
	want(t, rg.pay(`"8e03978e-40d5"`), ok, false)
	for _, same := range []string{`8e03978e-40d5`, `"8e03978e-40d5";v=1`} {
		want(t, rg.pay(same), ok, true)
	}
	long := strings.Repeat("k", 255)
	want(t, rg.pay(long), ok, false)
	for _, bad := range []string{`"8e0`, "a b", `"a", "b"`, `"\x"`, "a,b", long + "k", `""`} {
		wantRefusal(t, rg.pay(bad), invalidArgument, "KEY_INVALID")
	}
	wantRefusal(t, rg.pay("a", "idempotency-key", "b"), invalidArgument, "KEY_INVALID")
	wantRefusal(t, rg.send(Pay, "100"), invalidArgument, "KEY_MISSING")
	keytest.WantRuns(t, l, 2)
}

func (s suite) apart(t *testing.T) {
	store, l := keytest.NewMemory(t), &keytest.Ledger{}
	account := func(ctx context.Context) (string, error) {
		name := s.Incoming(ctx, "account")
		if name == "nobody" {
			return "", errors.New("unknown")
		}
		return name, nil
	}
	rg := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}), rpc.Settings{Account: account}, charging(l))
	other := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}), rpc.Settings{Account: account, Group: "v2"},
		charging(l))
	long := strings.Repeat("a", 200)
	seen := map[string]bool{}
	for _, account := range []string{"a", "b", "A", "a:Pay", long, long + "b", "default", "rpc", "~a", "=a"} {
		for _, rg := range []*Rig{rg, other} {
			for _, method := range []string{Pay, Refund} {
				first := rg.send(method, "1", "idempotency-key", "k", "account", account)
				want(t, first, ok, false)
				again := rg.send(method, "1", "idempotency-key", "k", "account", account)
				want(t, again, ok, true)
				if seen[first.Value] || again.Value != first.Value {
					t.Errorf("%q got %q, then %q", account, first.Value, again.Value)
				}
				seen[first.Value] = true
			}
		}
	}
	for _, account := range []string{"", "nobody"} {
		wantRefusal(t, rg.pay("k", "account", account), permissionDenied, "ACCOUNT_UNKNOWN")
	}
}

// occupied is a shop in which a payment under the key k is being processed until it is released.
func (s suite) occupied(t testing.TB, set rpc.Settings, p oncemill.Policy) (
	rg *Rig, l *keytest.Ledger, release func(), first <-chan Answer,
) {
	begun, end, answers := make(chan struct{}), make(chan struct{}), make(chan Answer, 1)
	var once sync.Once
	l = &keytest.Ledger{}
	charge := charging(l)
	rg = s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), p), set,
		func(ctx context.Context, procedure, value string) (string, error) {
			once.Do(func() { close(begun) })
			<-end
			return charge(ctx, procedure, value)
		})
	go func() { answers <- rg.pay("k") }()
	<-begun
	return rg, l, sync.OnceFunc(func() { close(end) }), answers
}

func (s suite) inProgress(t *testing.T) {
	rg, l, release, first := s.occupied(t, rpc.Settings{}, oncemill.Policy{})
	defer release()
	for range 3 {
		a := rg.pay("k")
		wantRefusal(t, a, aborted, "IN_PROGRESS")
		if !a.again() {
			t.Errorf("no RetryInfo in %v", a.Details)
		}
	}
	wantRefusal(t, rg.send(Pay, "other", "idempotency-key", "k"), failedPrecondition, "KEY_REUSED")
	release()
	want(t, <-first, ok, false)
	want(t, rg.pay("k"), ok, true)
	keytest.WantRuns(t, l, 1)
}

func (s suite) waiting(t *testing.T) {
	set := rpc.Settings{MaxWait: time.Hour, WaitLimit: oncemill.NewWaitLimit(1)}
	rg, l, release, first := s.occupied(t, set, oncemill.Policy{})
	defer release()
	answers := make(chan Answer)
	for range 2 {
		go func() { answers <- rg.pay("k") }()
	}
	wantRefusal(t, <-answers, aborted, "IN_PROGRESS") // one of the two has no place to wait
	release()
	want(t, <-first, ok, false)
	want(t, <-answers, ok, true)
	keytest.WantRuns(t, l, 1)
}

func (s suite) statuses(t *testing.T) {
	for code := uint32(1); code <= 16; code++ {
		detail := wrapperspb.String("why")
		l := &keytest.Ledger{}
		rg := s.memory(t, rpc.Settings{}, answering(l, s.Error(code, "no: \u00e4", detail)))
		first, again := rg.pay("k"), rg.pay("k")
		want(t, first, code, false)
		want(t, again, code, true)
		for _, a := range []Answer{first, again} {
			var got wrapperspb.StringValue
			if a.Message != "no: \u00e4" || len(a.Details) != 1 || a.Details[0].UnmarshalTo(&got) != nil ||
				got.GetValue() != "why" {
				t.Errorf("code %d: %q, details %v", code, a.Message, a.Details)
			}
		}
		keytest.WantRuns(t, l, 1)
	}
}

var errNoLuck = errors.New("no luck")

func (s suite) errors(t *testing.T) {
	for _, box := range []dedupstore.Store{keytest.NewMemory(t), keytest.NewInbox(t)} {
		l := &keytest.Ledger{}
		policy := oncemill.Policy{MaxAttempts: 3, Backoff: oncemill.Backoff{Min: 1, Max: 1}}
		rg := s.serve(t, keytest.NewGuard(t, box, policy), rpc.Settings{}, answering(l, errNoLuck))
		for i := range 4 {
			a := rg.pay("k")
			want(t, a, unknown, i == 3)
			if a.Message != errNoLuck.Error() || a.again() != (i < 2) {
				t.Errorf("call %d: %q, RetryInfo %v", i, a.Message, a.again())
			}
		}
		keytest.WantRuns(t, l, 3)
	}
}

func (s suite) steering(t *testing.T) {
	for name, tc := range map[string]struct {
		err   func(error) error
		runs  int // of three calls
		later bool
	}{
		"permanent":   {oncemill.Permanent, 1, false},
		"retry after": {func(err error) error { return oncemill.RetryAfter(time.Hour, err) }, 1, true},
		"uncounted":   {oncemill.Uncounted, 3, false},
		"no effect":   {oncemill.NoEffect, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := &keytest.Ledger{}
			policy := oncemill.Policy{Backoff: oncemill.Backoff{Min: 1, Max: 1}}
			err := tc.err(s.Error(notFound, "no luck"))
			rg := s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), policy), rpc.Settings{}, answering(l, err))
			for i := range 3 {
				a := rg.pay("k")
				if tc.later && i > 0 {
					wantRefusal(t, a, unavailable, "UNAVAILABLE")
					continue
				}
				want(t, a, notFound, tc.runs == 1 && i > 0)
				if a.again() == (name == "permanent") {
					t.Errorf("call %d: RetryInfo is %v", i, a.again())
				}
			}
			keytest.WantRuns(t, l, tc.runs)
		})
	}
}

func harmless(code uint32) bool { return code == notFound || code == resourceExhausted }

func (s suite) released(t *testing.T) {
	for name, policy := range map[string]oncemill.Policy{"usual": {MaxAttempts: 1}, "parks": oncemill.Irreversible()} {
		t.Run(name, func(t *testing.T) {
			l := &keytest.Ledger{}
			rg := s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), policy), rpc.Settings{Release: harmless},
				answering(l, s.Error(notFound, "a"), s.Error(resourceExhausted, "b"), s.Error(notFound, "c"), nil))
			for _, code := range []uint32{notFound, resourceExhausted, notFound} { // none counts as the one attempt
				a := rg.pay("k")
				want(t, a, code, false)
				if a.again() {
					t.Error("it has a RetryInfo")
				}
				wantRefusal(t, rg.send(Pay, "other", "idempotency-key", "k"), failedPrecondition, "KEY_REUSED")
			}
			want(t, rg.pay("k"), ok, false)
			want(t, rg.pay("k"), ok, true)
			keytest.WantRuns(t, l, 4)
		})
	}
}

func (s suite) releasedFailures(t *testing.T) {
	parks := oncemill.Irreversible()
	for _, tc := range []struct {
		policy oncemill.Policy
		runs   int
	}{{oncemill.Policy{MaxAttempts: 2}, 2}, {parks, 1}} {
		l := &keytest.Ledger{}
		rg := s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), tc.policy),
			rpc.Settings{Release: func(code uint32) bool { return code == unavailable }},
			answering(l, s.Error(unavailable, "down")))
		for i := range 3 {
			want(t, rg.pay("k"), unavailable, i >= tc.runs)
		}
		keytest.WantRuns(t, l, tc.runs)
	}
}

func (s suite) panics(t *testing.T) {
	var log strings.Builder
	var mu sync.Mutex
	l := &keytest.Ledger{}
	store := &keytest.Spy{Store: keytest.NewMemory(t)}
	policy := oncemill.Policy{Logger: keytest.Quiet()}
	rg := s.serve(t, keytest.NewGuard(t, store, policy), rpc.Settings{},
		func(context.Context, string, string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			log.WriteString(".")
			if l.Add("") == 1 {
				panic("card 4242")
			}
			return "done", nil
		})
	if a := rg.pay("k"); a.Code == ok {
		t.Errorf("a panic was answered with %q", a.Value)
	}
	want(t, rg.pay("k"), ok, false)
	want(t, rg.pay("k"), ok, true)
	keytest.WantRuns(t, l, 2)
	if kept := strings.Join(store.Seen(), "\n"); strings.Contains(kept, "4242") {
		t.Errorf("the store got the panic's value: %s", kept)
	}
}

func (s suite) parked(t *testing.T) {
	l := &keytest.Ledger{}
	rg := s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Irreversible()), rpc.Settings{},
		func(context.Context, string, string) (string, error) { l.Add(""); panic("bug") })
	if a := rg.pay("k"); a.Code == ok {
		t.Errorf("a panic was answered with %q", a.Value)
	}
	a := rg.pay("k")
	wantRefusal(t, a, unknown, "OUTCOME_UNKNOWN")
	if !a.replayed() {
		t.Error("it does not say that it is final")
	}
	keytest.WantRuns(t, l, 1)
}

// leave makes a payment under the key k, and goes when it is being processed.
func leave(t *testing.T, rg *Rig, begun <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		rg.call(ctx, Pay, wrapperspb.String("100"), "idempotency-key", "k")
	}()
	<-begun
	cancel()
	<-gone
}

func (s suite) leaving(t *testing.T) {
	l := &keytest.Ledger{}
	begun, end := make(chan struct{}), make(chan struct{})
	charge := charging(l)
	rg := s.memory(t, rpc.Settings{}, func(ctx context.Context, procedure, value string) (string, error) {
		close(begun)
		<-end
		if ctx.Err() != nil {
			t.Errorf("the handler's context ended: %v", context.Cause(ctx))
		}
		if _, set := ctx.Deadline(); set {
			t.Error("the handler's context has the client's deadline")
		}
		return charge(ctx, procedure, value)
	})
	leave(t, rg, begun)
	close(end)
	keytest.Until(t, "the response is kept", func() bool { return rg.pay("k").Code == ok })
	want(t, rg.pay("k"), ok, true)
	keytest.WantRuns(t, l, 1)
}

func (s suite) lingering(t *testing.T) {
	for name, result := range map[string]func(ctx context.Context) error{
		"its context's error": func(ctx context.Context) error { return ctx.Err() },
		"a code": func(context.Context) error {
			return s.Error(1, "a service that was called says so")
		},
	} {
		t.Run(name, func(t *testing.T) {
			begun, ended := make(chan struct{}), make(chan error, 1)
			l := &keytest.Ledger{}
			now := time.Duration(-1)
			guard := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{MaxAttempts: 1})
			rg := s.serveLinger(t, guard, rpc.Settings{}, &now, func(ctx context.Context, _, _ string) (string, error) {
				if l.Add("") > 1 {
					return "paid", nil
				}
				close(begun)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return "", result(ctx)
			})
			leave(t, rg, begun)
			if err := <-ended; !errors.Is(err, rpc.ErrClientGone) {
				t.Errorf("the cause is %v", err)
			}
			keytest.Until(t, "the key is free again", func() bool { return rg.pay("k").Code == ok })
			keytest.WantRuns(t, l, 2)
		})
	}
}

var errDown = errors.New("the store is down")

func (s suite) storeDown(t *testing.T) {
	l := &keytest.Ledger{}
	g := keytest.NewGuard(t, keytest.Broken{Store: keytest.NewMemory(t), Claiming: errDown}, oncemill.Policy{})
	rg := s.serve(t, g, rpc.Settings{}, charging(l))
	a := rg.pay("k")
	wantRefusal(t, a, unavailable, "UNAVAILABLE")
	if !a.again() {
		t.Error("no RetryInfo")
	}
	keytest.WantRuns(t, l, 0)
}

func (s suite) claimLost(t *testing.T) {
	for _, err := range []error{nil, s.Error(notFound, "no")} {
		store := keytest.Broken{Store: keytest.NewMemory(t), Settling: dedupstore.ErrClaimLost}
		rg := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}), rpc.Settings{}, answering(&keytest.Ledger{}, err))
		wantRefusal(t, rg.pay("k"), aborted, "IN_PROGRESS")
	}
}

func (s suite) unrecorded(t *testing.T) {
	for code, err := range map[uint32]error{ok: nil, unavailable: s.Error(unavailable, "no")} {
		store := keytest.Broken{Store: keytest.NewMemory(t), Settling: errDown}
		g := keytest.NewGuard(t, store, oncemill.Policy{Lease: 100 * time.Millisecond})
		rg := s.serve(t, g, rpc.Settings{}, answering(&keytest.Ledger{}, err))
		// The effect has happened: a client that believes it failed would act again.
		want(t, rg.pay("k"), code, false)
	}
}

func (s suite) foreign(t *testing.T) {
	g := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{})
	record := func(id, result string) {
		key := dedupstore.Key{Tenant: "default", Group: "rpc", Handler: Pay, ID: id}
		if _, err := g.Run(t.Context(), oncemill.Call{Key: key}, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: []byte(result)}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	l := &keytest.Ledger{}
	rg := s.serve(t, g, rpc.Settings{}, charging(l))
	for id, result := range map[string]string{
		"json": `{"v":1}`, "no end": `{"rpc":1}`, "version": "{\"rpc\":2}\n", "type": "{\"rpc\":1,\"type\":\"no.Such\"}\n",
		"http": "HTTP/1.1 200 OK\r\n\r\nx", "message": "{\"rpc\":1,\"type\":\"google.protobuf.StringValue\"}\n\xff",
	} {
		record(id, result)
		wantRefusal(t, rg.pay(`"`+id+`"`), internal, "MISCONFIGURED")
	}
	record("empty", "")
	wantRefusal(t, rg.pay("empty"), alreadyExists, "RESPONSE_DROPPED")
	keytest.WantRuns(t, l, 0)
}

func (s suite) tooLarge(t *testing.T) {
	l := &keytest.Ledger{}
	rg := s.memory(t, rpc.Settings{}, func(context.Context, string, string) (string, error) {
		l.Add("")
		return strings.Repeat("x", 1<<16), nil
	})
	a := rg.pay("k")
	want(t, a, ok, false)
	if len(a.Value) != 1<<16 {
		t.Errorf("%d bytes", len(a.Value))
	}
	a = rg.pay("k")
	wantRefusal(t, a, alreadyExists, "RESPONSE_DROPPED")
	if !a.replayed() {
		t.Error("it does not say that it is final")
	}
	keytest.WantRuns(t, l, 1)
}

func (s suite) metadata(t *testing.T) {
	for _, err := range []error{nil, s.Error(notFound, "no")} {
		store := &keytest.Spy{Store: keytest.NewMemory(t)}
		set := rpc.Settings{Metadata: []string{"location", "X-Binary-Bin"}}
		rg := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}), set,
			func(ctx context.Context, _, _ string) (string, error) {
				s.Add(ctx, "location", "/visible")
				s.Add(ctx, "session", "hidden-response")
				s.AddTrailer(ctx, "x-binary-bin", "AP8")
				return "body", err
			})
		first := rg.pay("k", "authorization", "hidden-request")
		again := rg.pay("k", "authorization", "hidden-request")
		if len(first.Metadata["session"]) != 1 || first.replayed() {
			t.Errorf("the first response has %v", first.Metadata)
		}
		if len(again.Metadata["session"]) != 0 || !again.replayed() ||
			!slices.Equal(again.Metadata["location"], []string{"/visible"}) ||
			!slices.Equal(again.Metadata["x-binary-bin"], first.Metadata["x-binary-bin"]) ||
			len(first.Metadata["x-binary-bin"]) != 1 {
			t.Errorf("the replay has %v after %v", again.Metadata, first.Metadata)
		}
		if kept := strings.Join(store.Seen(), "\n"); strings.Contains(kept, "hidden") {
			t.Errorf("the store got %s", kept)
		}
	}
}

func (s suite) passing(t *testing.T) {
	l := &keytest.Ledger{}
	h := func(context.Context, string, string) (string, error) { l.Add(""); return "done", nil }
	rg := s.memory(t, rpc.Settings{}, h)
	for range 2 { // without side effects: each runs
		want(t, rg.send(Look, "1", "idempotency-key", "k"), ok, false)
		want(t, rg.send(Look, "1"), ok, false)
	}
	keytest.WantRuns(t, l, 4)
	for _, replayed := range []bool{false, true} { // idempotent: the key is honoured, and not required
		want(t, rg.send(Put, "1"), ok, false)
		want(t, rg.send(Put, "1", "idempotency-key", "k"), ok, replayed)
	}
	keytest.WantRuns(t, l, 7)
	for _, metadata := range [][]string{nil, {"idempotency-key", "k"}} {
		wantRefusal(t, rg.send(Watch, "1", metadata...), unimplemented, "STREAM_REFUSED")
	}
	open := s.memory(t, rpc.Settings{Pass: func(procedure string) bool { return procedure != Refund }}, h)
	want(t, open.send(Watch, "1"), ok, false)
	want(t, open.send(Pay, "1"), ok, false)
	wantRefusal(t, open.send(Refund, "1"), invalidArgument, "KEY_MISSING")
}

func (s suite) fields(t *testing.T) {
	rg, l := s.shop(t, rpc.Settings{KeyField: KeyField})
	first := rg.send(Order, "order-7")
	want(t, first, ok, false)
	again := rg.send(Order, "order-7", "idempotency-key", "another") // the field is nearer to the action
	want(t, again, ok, true)
	if l.Count("order-7") != 1 || again.Value != first.Value {
		t.Errorf("%q, then %q", first.Value, again.Value)
	}
	want(t, rg.send(Order, "", "idempotency-key", "k"), ok, false)
	want(t, rg.send(Order, "", "idempotency-key", "k"), ok, true)
	wantRefusal(t, rg.send(Order, ""), invalidArgument, "KEY_MISSING")
	wantRefusal(t, rg.send(Order, "\u00e4"), invalidArgument, "KEY_INVALID")
	wantRefusal(t, rg.send(Order, strings.Repeat("k", 256)), invalidArgument, "KEY_INVALID")
	wantRefusal(t, rg.send(Pay, "1"), invalidArgument, "KEY_MISSING")
	keytest.WantRuns(t, l, 2)
}

func (s suite) unasked(t *testing.T) {
	for _, err := range []error{nil, s.Error(notFound, "personal"), s.Error(internal, "personal")} {
		store := &keytest.Spy{Store: keytest.NewMemory(t)}
		rg := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}),
			rpc.Settings{Required: func(string) bool { return false }},
			func(context.Context, string, string) (string, error) { return "personal", err })
		for _, metadata := range [][]string{nil, {"idempotency-key", "k"}} {
			a := rg.send(Pay, "1", metadata...)
			stored := strings.Contains(strings.Join(store.Seen(), "\n"), "personal")
			if a.Value+a.Message != "personal" || a.replayed() || stored != (metadata != nil) {
				t.Errorf("%v with %q: %q, stored %v", err, metadata, a.Value+a.Message, stored)
			}
		}
	}
}

func (s suite) crowd(t *testing.T) {
	l := &keytest.Ledger{}
	rg := s.memory(t, rpc.Settings{}, charging(l))
	answers := make([]Answer, 2000)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			<-start
			answers[i] = rg.pay("k")
		})
	}
	close(start)
	wg.Wait()
	fresh, replays, conflicts := 0, 0, 0
	value := ""
	for _, a := range answers {
		switch {
		case a.Code == ok && (value == "" || a.Value == value):
			value = a.Value
			if a.replayed() {
				replays++
			} else {
				fresh++
			}
		case a.Code == aborted && a.again():
			conflicts++
		default:
			t.Errorf("answered %d %s", a.Code, a.Value+a.Message)
		}
	}
	if fresh != 1 || l.Total() != 1 {
		t.Errorf("%d fresh responses, %d runs, want one each", fresh, l.Total())
	}
	t.Logf("1 run, %d replays, %d conflicts", replays, conflicts)
}

func (s suite) inbox(t *testing.T) {
	box := keytest.NewInbox(t)
	var before atomic.Int32
	rg := s.serve(t, keytest.NewGuard(t, box, oncemill.Policy{}), rpc.Settings{},
		func(ctx context.Context, _, value string) (string, error) {
			keytest.Write(ctx, value)
			before.Store(int32(len(box.Rows())))
			return "paid", nil
		})
	want(t, rg.pay("k"), ok, false)
	want(t, rg.pay("k"), ok, true)
	if rows := box.Rows(); before.Load() != 0 || !slices.Equal(rows, []string{"100"}) {
		t.Errorf("%d rows before the commit, %q after two calls", before.Load(), rows)
	}
}

func (s suite) inboxErrors(t *testing.T) {
	for code := uint32(1); code <= 16; code++ {
		for _, release := range []bool{false, true} {
			box, l := keytest.NewInbox(t), &keytest.Ledger{}
			rg := s.serve(t, keytest.NewGuard(t, box, oncemill.Policy{}),
				rpc.Settings{Release: func(uint32) bool { return release }},
				func(ctx context.Context, _, _ string) (string, error) {
					keytest.Write(ctx, "row")
					if l.Add("") == 1 {
						return "", s.Error(code, "no")
					}
					return "paid", nil
				})
			want(t, rg.pay("k"), code, false)
			if n := len(box.Rows()); n != 0 {
				t.Errorf("code %d, released %v: %d rows", code, release, n)
			}
			if !release {
				want(t, rg.pay("k"), code, true)
				keytest.WantRuns(t, l, 1)
				continue
			}
			want(t, rg.pay("k"), ok, false)
			if n := len(box.Rows()); n != 1 {
				t.Errorf("code %d: %d rows of the run that counts", code, n)
			}
		}
	}
}

func (s suite) inboxAgain(t *testing.T) {
	box, l := keytest.NewInbox(t), &keytest.Ledger{}
	box.Again = 2
	rg := s.serve(t, keytest.NewGuard(t, box, oncemill.Policy{}), rpc.Settings{},
		func(ctx context.Context, _, value string) (string, error) {
			n := l.Add("")
			keytest.Write(ctx, value)
			s.Add(ctx, "location", fmt.Sprint("/payments/", n))
			s.AddTrailer(ctx, "etag", strconv.Itoa(n))
			return strconv.Itoa(n), nil
		})
	for _, replayed := range []bool{false, true} {
		a := rg.pay("k")
		want(t, a, ok, replayed)
		if a.Value != "3" || !slices.Equal(a.Metadata["location"], []string{"/payments/3"}) ||
			!slices.Equal(a.Metadata["etag"], []string{"3"}) || len(box.Rows()) != 1 {
			t.Errorf("%q %v, %d rows", a.Value, a.Metadata, len(box.Rows()))
		}
	}
}

func (s suite) inboxTooLarge(t *testing.T) {
	for _, err := range []error{nil, s.Error(notFound, strings.Repeat("x", 1<<11))} {
		box, l := keytest.NewInbox(t), &keytest.Ledger{}
		rg := s.serve(t, keytest.NewGuard(t, box, oncemill.Policy{MaxResultBytes: 1 << 10}), rpc.Settings{},
			func(ctx context.Context, _, _ string) (string, error) {
				l.Add("")
				keytest.Write(ctx, "row")
				s.Add(ctx, "location", "/payments/1")
				return strings.Repeat("x", 1<<11), err
			})
		for _, replayed := range []bool{false, true} {
			a := rg.pay("k")
			wantRefusal(t, a, internal, "RESPONSE_REFUSED")
			if a.replayed() != replayed || len(a.Metadata["location"]) != 0 || len(box.Rows()) != 0 {
				t.Errorf("replayed %v, %v, %d rows", a.replayed(), a.Metadata, len(box.Rows()))
			}
		}
		keytest.WantRuns(t, l, 1)
	}
}

func (s suite) inboxFaults(t *testing.T) {
	serve := func(box *keytest.Inbox, l *keytest.Ledger, err error) *Rig {
		policy := oncemill.Policy{MaxAttempts: 2, Lease: 100 * time.Millisecond, Backoff: oncemill.Backoff{Min: 1, Max: 1}}
		return s.serve(t, keytest.NewGuard(t, box, policy), rpc.Settings{}, answering(l, err))
	}
	l, box := &keytest.Ledger{}, keytest.NewInbox(t)
	box.Undecided = errDown
	wantRefusal(t, serve(box, l, nil).pay("k"), unavailable, "UNAVAILABLE")

	l, box = &keytest.Ledger{}, keytest.NewInbox(t)
	box.Broken, box.Unsettled = errDown, errDown
	wantRefusal(t, serve(box, l, nil).pay("k"), unavailable, "UNAVAILABLE")

	l, box = &keytest.Ledger{}, keytest.NewInbox(t)
	box.Broken = errDown
	rg := serve(box, l, nil)
	for i := range 3 {
		a := rg.pay("k")
		wantRefusal(t, a, internal, "NOT_COMMITTED")
		if a.again() != (i == 0) || a.replayed() != (i == 2) {
			t.Errorf("call %d: RetryInfo %v, replayed %v", i, a.again(), a.replayed())
		}
	}
	keytest.WantRuns(t, l, 2)

	for _, err := range []error{nil, errNoLuck, s.Error(notFound, "no"), oncemill.Permanent(errNoLuck)} {
		l, box = &keytest.Ledger{}, keytest.NewInbox(t)
		box.Conflict = true
		wantRefusal(t, serve(box, l, err).pay("k"), unavailable, "UNAVAILABLE")
		keytest.WantRuns(t, l, 1)
	}
}
