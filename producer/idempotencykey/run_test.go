package idempotencykey_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestMiddleware_ServerErrorsAreReleasedIfThatIsChosen(t *testing.T) {
	t.Parallel()
	rg, n := answering(t, idempotencykey.Config{Release: idempotencykey.ServerErrors}, 503, 500, 201)
	keytest.Want(t, rg.Pay("k"), 503, false)
	keytest.Want(t, rg.Pay("k"), 500, false)
	keytest.Want(t, rg.Pay("k"), 201, false)
	keytest.Want(t, rg.Pay("k"), 201, true)
	keytest.WantRuns(t, n, 3)
}

func TestMiddleware_ReleasedServerErrorsEndWhenTheAttemptsAreSpent(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	rg := keytest.Serve(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{MaxAttempts: 2}),
		idempotencykey.Config{Release: idempotencykey.ServerErrors},
		func(w http.ResponseWriter, _ *http.Request) { l.Add(""); w.WriteHeader(503) })
	keytest.Want(t, rg.Pay("k"), 503, false)
	keytest.Want(t, rg.Pay("k"), 503, false)
	keytest.Want(t, rg.Pay("k"), 503, true)
	keytest.WantRuns(t, l, 2)
}

func TestMiddleware_PanicEndsTheConnectionAndReleasesTheKey(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{"abort": http.ErrAbortHandler, "bug": "card 4242"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &keytest.Ledger{}
			rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, "half a resp")
				if l.Add("") == 1 {
					panic(value)
				}
			})
			if a := rg.Pay("k"); a.Err == nil {
				t.Errorf("answered %d %q, want an aborted connection", a.Status, a.Body)
			}
			keytest.Want(t, rg.Pay("k"), 200, false)
			keytest.Want(t, rg.Pay("k"), 200, true)
			keytest.WantRuns(t, l, 2)
		})
	}
}

func TestMiddleware_ParkedRunIsAnsweredWithAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	rg := keytest.Serve(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Irreversible()), idempotencykey.Config{},
		func(http.ResponseWriter, *http.Request) {
			l.Add("")
			panic(http.ErrAbortHandler)
		})
	if a := rg.Pay("k"); a.Err == nil {
		t.Errorf("answered %d, want an aborted connection", a.Status)
	}
	a := rg.Pay("k")
	keytest.WantProblem(t, a, 500, idempotencykey.CodeUnknown)
	if !a.Replayed() {
		t.Error("it does not say that it is a replay")
	}
	keytest.WantRuns(t, l, 1)
}

func TestMiddleware_ClientThatGoesDoesNotStopTheRun(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	begun, ended := make(chan struct{}), make(chan error, 1)
	m := newMiddleware(t, idempotencykey.Config{Route: func(*http.Request) string { return keytest.Route }})
	rg := keytest.ServeHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gone := r.Context().Done() // of the request itself
		m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(begun)
			<-gone
			ended <- r.Context().Err()
			l.Charge(w, r)
		})).ServeHTTP(w, r)
	}))
	keytest.Leave(t, rg, begun)
	if err := <-ended; err != nil {
		t.Errorf("the handler's context ended: %v", err)
	}
	keytest.Until(t, "the response is kept", func() bool { return rg.Pay("k").Status == 201 })
	keytest.Want(t, rg.Pay("k"), 201, true)
	keytest.WantRuns(t, l, 1)
}

func TestMiddleware_RunOfAClientThatHasGoneEndsAfterTheLimit(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan error, 1)
	var runs atomic.Int32
	c := idempotencykey.Config{Release: idempotencykey.ServerErrors}
	rg := serveLinger(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{}), c, -1,
		func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) > 1 {
				return
			}
			close(begun)
			<-r.Context().Done()
			ended <- context.Cause(r.Context())
			w.WriteHeader(503)
		})
	keytest.Leave(t, rg, begun)
	if err := <-ended; !errors.Is(err, idempotencykey.ErrClientGone) {
		t.Errorf("the cause is %v", err)
	}
	keytest.Until(t, "the key is free again", func() bool { return rg.Pay("k").Status == 200 })
}

func TestMiddleware_DeadlineFromOutsideDoesNotStopTheRun(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	m := newMiddleware(t, idempotencykey.Config{Route: func(*http.Request) string { return keytest.Route }})
	rg := keytest.ServeHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outer, end := context.WithTimeout(r.Context(), time.Hour)
		defer end()
		m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			end()
			if _, set := r.Context().Deadline(); set || r.Context().Err() != nil {
				t.Errorf("the handler's context has a deadline (%v), error %v", set, r.Context().Err())
			}
			l.Charge(w, r)
		})).ServeHTTP(w, r.WithContext(outer))
	}))
	keytest.Want(t, rg.Pay("k"), 201, false)
	keytest.Want(t, rg.Pay("k"), 201, true)
	keytest.WantRuns(t, l, 1)
}

// Nothing is left unguarded by mistake: a key on any method that may have an effect is honoured.
func TestMiddleware_KeysAreHonouredOnAllMethodsThatMayHaveAnEffect(t *testing.T) {
	t.Parallel()
	for method, required := range map[string]bool{"POST": true, "PATCH": true, "PUT": false, "DELETE": false,
		"patch": false, "Pay": false} {
		rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
			if oncemill.FromContext(r.Context()).Key.ID == "" {
				w.WriteHeader(500)
			}
		})
		keytest.Want(t, rg.Send(method, keytest.Route, "", keytest.Key("k")), 200, false)
		keytest.Want(t, rg.Send(method, keytest.Route, "", keytest.Key("k")), 200, true)
		if required {
			keytest.WantProblem(t, rg.Send(method, keytest.Route, ""), 400, idempotencykey.CodeMissing)
		} else {
			keytest.Want(t, rg.Send(method, keytest.Route, ""), 200, false)
		}
	}
}

func TestMiddleware_WriterCanNeitherFlushNorHijack(t *testing.T) {
	t.Parallel()
	rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		rc := http.NewResponseController(w)
		_, _, err := rc.Hijack()
		if err2 := rc.Flush(); !errors.Is(err, http.ErrNotSupported) || !errors.Is(err2, http.ErrNotSupported) {
			t.Errorf("Hijack returned %v, Flush %v", err, err2)
		}
		if err := errors.Join(rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{})); err != nil {
			t.Error(err)
		}
	})
	keytest.Want(t, rg.Pay("k"), 200, false)
}

func TestMiddleware_OptionalKeyThatIsMissingStillMakesARun(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	rg := serveMemory(t, idempotencykey.Config{Required: idempotencykey.Optional}, l.Charge)
	keytest.Want(t, rg.Send("POST", keytest.Route, "{}"), 201, false)
	keytest.Want(t, rg.Send("POST", keytest.Route, "{}"), 201, false)
	keytest.Want(t, rg.Pay("k"), 201, false)
	keytest.Want(t, rg.Pay("k"), 201, true)
	keytest.WantRuns(t, l, 3)
}

func TestMiddleware_ResponsesThatNobodyCanAskForAreNotStored(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 409, 500} {
		store := &keytest.Spy{Store: keytest.NewMemory(t)}
		rg := keytest.Serve(t, keytest.NewGuard(t, store, oncemill.Policy{}),
			idempotencykey.Config{Required: idempotencykey.Optional}, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "personal")
			})
		for _, options := range [][]keytest.Option{nil, {keytest.Key("k")}} {
			a := rg.Send("POST", keytest.Route, "{}", options...)
			keytest.Want(t, a, status, false)
			stored := strings.Contains(strings.Join(store.Seen(), "\n"), "personal")
			if a.Body != "personal" || stored != (options != nil) {
				t.Errorf("status %d, with %d headers: body %q, stored %v", status, len(options), a.Body, stored)
			}
		}
	}
}

func TestWrap_RefusesAHandlerThatIsNotThere(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, idempotencykey.Config{})
	for name, wrap := range map[string]func(){
		"Wrap":     func() { m.Wrap(nil) },
		"Wrap ":    func() { m.Wrap(http.HandlerFunc(nil)) },
		"WrapFunc": func() { m.WrapFunc(nil) },
	} {
		func() {
			defer func() {
				if says := fmt.Sprint(recover()); !strings.HasPrefix(says, "idempotencykey: "+name) {
					t.Errorf("%s of nil: %s", name, says)
				}
			}()
			wrap()
		}()
	}
}

func TestMiddleware_WhatManyRequestsMeetIsOneLine(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	policy := oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	m := keytest.NewMiddleware(t, keytest.NewGuard(t, keytest.NewMemory(t), policy), idempotencykey.Config{
		Account: func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
	})
	h := m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 100 {
		for _, account := range []string{"", "a"} { // of nobody, and without a route
			r := httptest.NewRequest(http.MethodPost, keytest.Route, nil)
			r.Header.Set("Account", account)
			r.Header.Set("Idempotency-Key", "k")
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines != 2 {
		t.Errorf("%d lines, want one of each kind:\n%s", lines, log.String())
	}
}

func TestMiddleware_WithoutARouteNothingRuns(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	m := newMiddleware(t, idempotencykey.Config{})
	rg := keytest.ServeHandler(t, m.Wrap(http.HandlerFunc(l.Charge)))
	keytest.WantProblem(t, rg.Pay("k"), 500, idempotencykey.CodeInternal)
	keytest.WantRuns(t, l, 0)
}

func TestMiddleware_HeldRequestsGetTheResponseOfTheFirst(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	begun, end := make(chan struct{}), make(chan struct{})
	rg := serveMemory(t, idempotencykey.Config{MaxWait: 1 << 40, WaitLimit: oncemill.NewWaitLimit(1)},
		func(w http.ResponseWriter, r *http.Request) {
			close(begun)
			<-end
			l.Charge(w, r)
		})
	answers := make(chan keytest.Answer)
	pay := func() { answers <- rg.Pay("k") }
	go pay()
	<-begun
	go pay()
	go pay()
	keytest.WantProblem(t, <-answers, 409, idempotencykey.CodeInProgress) // one of the two has no place to wait
	close(end)
	a, b := <-answers, <-answers
	if a.Status != 201 || b.Status != 201 || a.Replayed() == b.Replayed() {
		t.Errorf("%d %v and %d %v", a.Status, a.Replayed(), b.Status, b.Replayed())
	}
	keytest.WantRuns(t, l, 1)
}

func TestMiddleware_ProblemsCanBeWrittenInAnotherForm(t *testing.T) {
	t.Parallel()
	rg, release, first := occupiedBy(t, idempotencykey.Config{WriteProblem: func(w http.ResponseWriter,
		_ *http.Request, p idempotencykey.Problem) {
		w.WriteHeader(p.Status)
		io.WriteString(w, p.Code)
	}})
	a := rg.Pay("k")
	if a.Status != 409 || a.Body != idempotencykey.CodeInProgress || a.Header.Get("Retry-After") == "" {
		t.Errorf("%d %q %v", a.Status, a.Body, a.Header)
	}
	release()
	keytest.Want(t, <-first, 201, false)
}
