package idempotencykey_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// givingUp is a handler whose first run waits for something until its context ends, and then returns without a word.
func givingUp(begun chan struct{}, before, after func(r *http.Request) error) http.HandlerFunc {
	var runs atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		first := runs.Add(1) == 1
		if err := before(r); err != nil {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		if first {
			close(begun)
			<-r.Context().Done()
			return
		}
		if err := after(r); err != nil {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "paid")
	}
}

// retried repeats the payment of leave until it is neither in progress nor unavailable.
func retried(t *testing.T, rg *rig) (a answer) {
	t.Helper()
	until(t, "the key is free again", func() bool { a = rg.pay("k"); return a.status != 409 && a.status != 503 })
	return a
}

func TestMiddleware_RunThatGivesUpInSilenceIsNoResponse(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	var effects atomic.Int32
	g := newGuard(t, newMemory(t), oncemill.Policy{})
	rg := serveLinger(t, g, idempotencykey.Config{}, 20*time.Millisecond, givingUp(begun,
		func(*http.Request) error { return nil },
		func(*http.Request) error { effects.Add(1); return nil },
	))
	leave(t, rg, begun)
	a := retried(t, rg)
	want(t, a, 201, false)
	if a.body != "paid" || effects.Load() != 1 {
		t.Errorf("body %q, %d effects", a.body, effects.Load())
	}
	want(t, rg.pay("k"), 201, true)
}

func TestMiddleware_RunThatGivesUpInSilenceIsUnknownUnderAPolicyThatParks(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	nothing := func(*http.Request) error { return nil }
	g := newGuard(t, newMemory(t), oncemill.Irreversible())
	rg := serveLinger(t, g, idempotencykey.Config{}, -1, givingUp(begun, nothing, nothing))
	leave(t, rg, begun)
	wantProblem(t, retried(t, rg), 500, idempotencykey.CodeUnknown)
}

func TestMiddleware_ResponseThatIsGivenAfterTheEndOfTheContextCounts(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	l := &ledger{}
	g := newGuard(t, newMemory(t), oncemill.Policy{})
	rg := serveLinger(t, g, idempotencykey.Config{}, -1, func(w http.ResponseWriter, r *http.Request) {
		if l.add("") == 1 {
			close(begun)
		}
		<-r.Context().Done()
		w.WriteHeader(202)
	})
	leave(t, rg, begun)
	want(t, retried(t, rg), 202, true)
	wantRuns(t, l, 1)
}

func TestInbox_RunThatGivesUpInSilenceRollsBackAndStoresNothing(t *testing.T) {
	t.Parallel()
	box, begun := newInbox(t), make(chan struct{})
	rg := serveLinger(t, newGuard(t, box, oncemill.Policy{}), idempotencykey.Config{}, 20*time.Millisecond,
		givingUp(begun,
			func(r *http.Request) error { write(r.Context(), "debit"); return nil },
			func(r *http.Request) error { write(r.Context(), "credit"); return nil },
		))
	leave(t, rg, begun)
	want(t, retried(t, rg), 201, false)
	if box.count() != 2 {
		t.Errorf("%d rows, want a debit and a credit", box.count())
	}
	want(t, rg.pay("k"), 201, true)
}

// TestMiddleware_HandlerNeverBeginsWithAnEndedContext lets requests end at about the time at which their handlers
// begin.
func TestMiddleware_HandlerNeverBeginsWithAnEndedContext(t *testing.T) {
	t.Parallel()
	var began, dead atomic.Int32
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}),
		idempotencykey.Config{Route: func(*http.Request) string { return route }})
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
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, route, nil)
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
