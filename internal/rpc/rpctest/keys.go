package rpctest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
)

func (s suite) repeat(t *testing.T) {
	rg, l := s.shop(t, Settings{})
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
	rg, l := s.shop(t, Settings{})
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
	rg := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}), Settings{Account: account}, charging(l))
	other := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}), Settings{Account: account, Group: "v2"},
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

func (s suite) fields(t *testing.T) {
	rg, l := s.shop(t, Settings{KeyField: KeyField})
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

func (s suite) passing(t *testing.T) {
	l := &keytest.Ledger{}
	h := func(context.Context, string, string) (string, error) { l.Add(""); return "done", nil }
	rg := s.memory(t, Settings{}, h)
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
	open := s.memory(t, Settings{Pass: func(procedure string) bool { return procedure != Refund }}, h)
	want(t, open.send(Watch, "1"), ok, false)
	want(t, open.send(Pay, "1"), ok, false)
	wantRefusal(t, open.send(Refund, "1"), invalidArgument, "KEY_MISSING")
}

func (s suite) unasked(t *testing.T) {
	for _, err := range []error{nil, s.Error(notFound, "personal"), s.Error(internal, "personal")} {
		store := &keytest.Spy{Store: keytest.NewMemory(t)}
		rg := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}),
			Settings{Required: func(string) bool { return false }},
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
