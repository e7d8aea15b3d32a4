package idempotencykey_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// broken is a store some of whose operations fail.
type broken struct {
	dedupstore.Store
	claim, settle error
}

func (s broken) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (b broken) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if b.claim != nil {
		return dedupstore.Answer{}, b.claim
	}
	return dedupstore.ClaimOne(ctx, b.Store, r)
}

func (s broken) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (b broken) settleOne(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	if b.settle != nil {
		return b.settle
	}
	return dedupstore.SettleOne(ctx, b.Store, c, s)
}

var errDown = errors.New("the store is down")

func TestFaults_WithoutAStoreNothingRuns(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	rg := serve(t, newGuard(t, broken{newMemory(t), errDown, nil}, oncemill.Policy{}), idempotencykey.Config{},
		l.charge)
	a := rg.pay("k")
	wantProblem(t, a, 503, idempotencykey.CodeUnavailable)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	wantRuns(t, l, 0)
}

func TestFaults_PolicyThatFailsOpenRunsUnguarded(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]oncemill.Policy{"open": {StoreDown: oncemill.FailOpen}, "shadow": {Shadow: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &ledger{}
			rg := serve(t, newGuard(t, broken{newMemory(t), errDown, nil}, p), idempotencykey.Config{},
				func(w http.ResponseWriter, _ *http.Request) {
					switch n.add("") {
					case 1:
						w.WriteHeader(201)
					case 2:
						w.WriteHeader(502)
					default:
						panic(http.ErrAbortHandler)
					}
				})
			want(t, rg.pay("k"), 201, false)
			want(t, rg.pay("k"), 502, false)
			if a := rg.pay("k"); a.err == nil {
				t.Errorf("a panic was answered with %d", a.status)
			}
		})
	}
}

func TestFaults_ResponseThatCannotBeStoredIsSentAllTheSame(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 503} {
		store := broken{newMemory(t), nil, errDown}
		rg := serve(t, newGuard(t, store, oncemill.Policy{Lease: 100 * time.Millisecond}), idempotencykey.Config{},
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		want(t, rg.pay("k"), status, false) // the effect has happened: a client that believes it failed would act again
	}
}

func TestFaults_ResponseOfARunThatLostItsClaimDoesNotCount(t *testing.T) {
	t.Parallel()
	store := broken{newMemory(t), nil, dedupstore.ErrClaimLost}
	handlers := map[string]http.HandlerFunc{
		"held": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "mine") },
		"begun": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(make([]byte, 1<<20)) // more than is kept
		},
	}
	rg := serve(t, newGuard(t, store, oncemill.Policy{}), idempotencykey.Config{}, handlers["held"])
	wantProblem(t, rg.pay("k"), 409, idempotencykey.CodeInProgress)
	rg = serve(t, newGuard(t, store, oncemill.Policy{}), idempotencykey.Config{}, func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(500)
	})
	wantProblem(t, rg.pay("k1"), 409, idempotencykey.CodeInProgress)
	rg = serve(t, newGuard(t, store, oncemill.Policy{}), idempotencykey.Config{}, handlers["begun"])
	if a := rg.pay("k2"); a.err == nil {
		t.Errorf("it ended as if it were whole: %d, %d bytes", a.status, len(a.body))
	}
}

func TestFaults_CommitThatFailsIsNeverAnsweredAsDone(t *testing.T) {
	t.Parallel()
	box, l := newInbox(t), &ledger{}
	box.broken = errDown
	rg := serve(t, newGuard(t, box, oncemill.Policy{MaxAttempts: 2, Backoff: oncemill.Backoff{Min: time.Nanosecond}}),
		idempotencykey.Config{},
		func(w http.ResponseWriter, _ *http.Request) { l.add(""); w.WriteHeader(201) })
	wantProblem(t, rg.pay("k"), 500, idempotencykey.CodeUncommitted)
	until(t, "the attempts are spent", func() bool {
		a := rg.pay("k")
		if a.status == 201 {
			t.Error("answered 201, although nothing is committed")
		}
		return a.status == 500
	})
	a := rg.pay("k")
	wantProblem(t, a, 500, idempotencykey.CodeUncommitted)
	if !a.replayed() {
		t.Error("it does not say that it is final")
	}
	wantRuns(t, l, 2)
}

func TestFaults_CommitThatFailsAndCannotBeRecordedIsNeverAnsweredAsDone(t *testing.T) {
	t.Parallel()
	box := newInbox(t)
	box.broken, box.settle = errDown, errDown
	rg := serve(t, newGuard(t, box, oncemill.Policy{Lease: 100 * time.Millisecond}), idempotencykey.Config{},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) })
	wantProblem(t, rg.pay("k"), 503, idempotencykey.CodeUnavailable)
}

func TestFaults_RecordOfAnotherProgramIsNotAResponse(t *testing.T) {
	t.Parallel()
	g := newGuard(t, newMemory(t), oncemill.Policy{})
	foreign := func(id string, result []byte) {
		call := oncemill.Call{Key: dedupstore.Key{Tenant: "default", Group: "http", Handler: "POST " + route, ID: id}}
		if _, err := g.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: result}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	l := &ledger{}
	rg := serve(t, g, idempotencykey.Config{}, l.charge)
	for id, result := range map[string]string{
		"json": `{"v":1}`, "number": "HTTP/1.1 99 No\r\n\r\nx", "informational": "HTTP/1.1 101 Go\r\n\r\n",
		"end": "HTTP/1.1 200 OK",
		"cut": "HTTP/1.1 200 OK\r\nContent-Type: x\r\n", "line": "HTTP/1.1 200 OK\r\nx\r\n\r\n",
		"version": "HTTP/x 200 OK\r\n\r\n",
	} {
		foreign(id, []byte(result))
		wantProblem(t, rg.pay(id), 500, idempotencykey.CodeInternal)
	}
	foreign("empty", nil)
	wantProblem(t, rg.pay("empty"), 500, idempotencykey.CodeUnknown)
	wantRuns(t, l, 0)
}
