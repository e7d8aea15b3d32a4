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
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

var errDown = errors.New("the store is down")

func TestFaults_WithoutAStoreNothingRuns(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	g := keytest.NewGuard(t, keytest.Broken{Store: keytest.NewMemory(t), Claiming: errDown}, oncemill.Policy{})
	rg := keytest.Serve(t, g, idempotencykey.Config{}, l.Charge)
	a := rg.Pay("k")
	keytest.WantProblem(t, a, 503, idempotencykey.CodeUnavailable)
	if a.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", a.Header.Get("Retry-After"))
	}
	keytest.WantRuns(t, l, 0)
}

func TestFaults_PolicyThatFailsOpenRunsUnguarded(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]oncemill.Policy{"open": {StoreDown: oncemill.FailOpen}, "shadow": {Shadow: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &keytest.Ledger{}
			g := keytest.NewGuard(t, keytest.Broken{Store: keytest.NewMemory(t), Claiming: errDown}, p)
			rg := keytest.Serve(t, g, idempotencykey.Config{},
				func(w http.ResponseWriter, _ *http.Request) {
					switch n.Add("") {
					case 1:
						w.WriteHeader(201)
					case 2:
						w.WriteHeader(502)
					default:
						panic(http.ErrAbortHandler)
					}
				})
			keytest.Want(t, rg.Pay("k"), 201, false)
			keytest.Want(t, rg.Pay("k"), 502, false)
			if a := rg.Pay("k"); a.Err == nil {
				t.Errorf("a panic was answered with %d", a.Status)
			}
		})
	}
}

func TestFaults_ResponseThatCannotBeStoredIsSentAllTheSame(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 503} {
		store := keytest.Broken{Store: keytest.NewMemory(t), Settling: errDown}
		g := keytest.NewGuard(t, store, oncemill.Policy{Lease: 100 * time.Millisecond})
		rg := keytest.Serve(t, g, idempotencykey.Config{},
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		// The effect has happened: a client that believes it failed would act again.
		keytest.Want(t, rg.Pay("k"), status, false)
	}
}

func TestFaults_ResponseOfARunThatLostItsClaimDoesNotCount(t *testing.T) {
	t.Parallel()
	store := keytest.Broken{Store: keytest.NewMemory(t), Settling: dedupstore.ErrClaimLost}
	handlers := map[string]http.HandlerFunc{
		"held": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "mine") },
		"begun": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(make([]byte, 1<<20)) // more than is kept
		},
	}
	g := keytest.NewGuard(t, store, oncemill.Policy{})
	rg := keytest.Serve(t, g, idempotencykey.Config{}, handlers["held"])
	keytest.WantProblem(t, rg.Pay("k"), 409, idempotencykey.CodeInProgress)
	rg = keytest.Serve(t, g, idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
	})
	keytest.WantProblem(t, rg.Pay("k1"), 409, idempotencykey.CodeInProgress)
	rg = keytest.Serve(t, g, idempotencykey.Config{}, handlers["begun"])
	if a := rg.Pay("k2"); a.Err == nil {
		t.Errorf("it ended as if it were whole: %d, %d bytes", a.Status, len(a.Body))
	}
}

func TestFaults_CommitThatFailsIsNeverAnsweredAsDone(t *testing.T) {
	t.Parallel()
	box, l := keytest.NewInbox(t), &keytest.Ledger{}
	box.Broken = errDown
	policy := oncemill.Policy{MaxAttempts: 2, Backoff: oncemill.Backoff{Min: time.Nanosecond}}
	rg := keytest.Serve(t, keytest.NewGuard(t, box, policy), idempotencykey.Config{},
		func(w http.ResponseWriter, _ *http.Request) { l.Add(""); w.WriteHeader(201) })
	keytest.WantProblem(t, rg.Pay("k"), 500, idempotencykey.CodeUncommitted)
	keytest.Until(t, "the attempts are spent", func() bool {
		a := rg.Pay("k")
		if a.Status == 201 {
			t.Error("answered 201, although nothing is committed")
		}
		return a.Status == 500
	})
	a := rg.Pay("k")
	keytest.WantProblem(t, a, 500, idempotencykey.CodeUncommitted)
	if !a.Replayed() {
		t.Error("it does not say that it is final")
	}
	keytest.WantRuns(t, l, 2)
}

func TestFaults_CommitThatFailsAndCannotBeRecordedIsNeverAnsweredAsDone(t *testing.T) {
	t.Parallel()
	box := keytest.NewInbox(t)
	box.Broken, box.Unsettled = errDown, errDown
	g := keytest.NewGuard(t, box, oncemill.Policy{Lease: 100 * time.Millisecond})
	rg := keytest.Serve(t, g, idempotencykey.Config{},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) })
	keytest.WantProblem(t, rg.Pay("k"), 503, idempotencykey.CodeUnavailable)
}

func TestFaults_RecordOfAnotherProgramIsNotAResponse(t *testing.T) {
	t.Parallel()
	g := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{})
	foreign := func(id string, result []byte) {
		key := dedupstore.Key{Tenant: "default", Group: "http", Handler: "POST " + keytest.Route, ID: id}
		call := oncemill.Call{Key: key}
		if _, err := g.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: result}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	l := &keytest.Ledger{}
	rg := keytest.Serve(t, g, idempotencykey.Config{}, l.Charge)
	for id, result := range map[string]string{
		"json": `{"v":1}`, "number": "HTTP/1.1 99 No\r\n\r\nx", "informational": "HTTP/1.1 101 Go\r\n\r\n",
		"end": "HTTP/1.1 200 OK",
		"cut": "HTTP/1.1 200 OK\r\nContent-Type: x\r\n", "line": "HTTP/1.1 200 OK\r\nx\r\n\r\n",
		"version": "HTTP/x 200 OK\r\n\r\n",
	} {
		foreign(id, []byte(result))
		keytest.WantProblem(t, rg.Pay(id), 410, idempotencykey.CodeNotKept)
	}
	foreign("empty", nil)
	keytest.WantProblem(t, rg.Pay("empty"), 410, idempotencykey.CodeNotKept)
	keytest.WantRuns(t, l, 0)
}
