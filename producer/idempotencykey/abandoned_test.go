package idempotencykey_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestMiddleware_RunThatGivesUpInSilenceIsNoResponse(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	var effects atomic.Int32
	g := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{})
	rg := serveLinger(t, g, idempotencykey.Config{}, 20*time.Millisecond, keytest.GivingUp(begun,
		func(*http.Request) error { return nil },
		func(*http.Request) error { effects.Add(1); return nil },
	))
	keytest.Leave(t, rg, begun)
	a := keytest.Retried(t, rg)
	keytest.Want(t, a, 201, false)
	if a.Body != "paid" || effects.Load() != 1 {
		t.Errorf("body %q, %d effects", a.Body, effects.Load())
	}
	keytest.Want(t, rg.Pay("k"), 201, true)
}

func TestMiddleware_RunThatGivesUpInSilenceIsUnknownUnderAPolicyThatParks(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	nothing := func(*http.Request) error { return nil }
	g := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Irreversible())
	rg := serveLinger(t, g, idempotencykey.Config{}, -1, keytest.GivingUp(begun, nothing, nothing))
	keytest.Leave(t, rg, begun)
	keytest.WantProblem(t, keytest.Retried(t, rg), 500, idempotencykey.CodeUnknown)
}

func TestMiddleware_ResponseThatIsGivenAfterTheEndOfTheContextCounts(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	l := &keytest.Ledger{}
	g := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{})
	rg := serveLinger(t, g, idempotencykey.Config{}, -1, func(w http.ResponseWriter, r *http.Request) {
		if l.Add("") == 1 {
			close(begun)
		}
		<-r.Context().Done()
		w.WriteHeader(202)
	})
	keytest.Leave(t, rg, begun)
	keytest.Want(t, keytest.Retried(t, rg), 202, true)
	keytest.WantRuns(t, l, 1)
}

func TestInbox_RunThatGivesUpInSilenceRollsBackAndStoresNothing(t *testing.T) {
	t.Parallel()
	box, begun := keytest.NewInbox(t), make(chan struct{})
	rg := serveLinger(t, keytest.NewGuard(t, box, oncemill.Policy{}), idempotencykey.Config{}, 20*time.Millisecond,
		keytest.GivingUp(begun,
			func(r *http.Request) error { keytest.Write(r.Context(), "debit"); return nil },
			func(r *http.Request) error { keytest.Write(r.Context(), "credit"); return nil },
		))
	keytest.Leave(t, rg, begun)
	keytest.Want(t, keytest.Retried(t, rg), 201, false)
	if len(box.Rows()) != 2 {
		t.Errorf("%d rows, want a debit and a credit", len(box.Rows()))
	}
	keytest.Want(t, rg.Pay("k"), 201, true)
}

// TestMiddleware_HandlerNeverBeginsWithAnEndedContext lets requests end at about the time at which their handlers
// begin.
func TestMiddleware_HandlerNeverBeginsWithAnEndedContext(t *testing.T) {
	t.Parallel()
	var began, dead atomic.Int32
	m := newMiddleware(t, idempotencykey.Config{Route: func(*http.Request) string { return keytest.Route }})
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began.Add(1)
		if r.Context().Err() != nil {
			dead.Add(1)
		}
		w.WriteHeader(http.StatusCreated)
	}))
	n := 10_000
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		n = 200_000
	}
	for i := range n {
		ctx, cancel := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, keytest.Route, nil)
		r.Header.Set("Idempotency-Key", strconv.Itoa(i))
		cancelled := make(chan struct{})
		go func() {
			for range i % 400 {
				runtime.Gosched()
			}
			cancel()
			close(cancelled)
		}()
		h.ServeHTTP(httptest.NewRecorder(), r)
		<-cancelled
	}
	if dead.Load() > 0 || began.Load() == 0 {
		t.Errorf("of %d handlers, %d began with an ended context", began.Load(), dead.Load())
	}
}
