package idempotencykey_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestMiddleware_ServerErrorsAreReleasedIfThatIsChosen(t *testing.T) {
	t.Parallel()
	rg, n := answering(t, idempotencykey.Config{ServerErrors: idempotencykey.ReleaseServerErrors}, 503, 500, 201)
	want(t, rg.pay("k"), 503, false)
	want(t, rg.pay("k"), 500, false)
	want(t, rg.pay("k"), 201, false)
	want(t, rg.pay("k"), 201, true)
	wantRuns(t, n, 3)
}

func TestMiddleware_ReleasedServerErrorsEndWhenTheAttemptsAreSpent(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	rg := serve(t, newGuard(t, newMemory(t), oncemill.Policy{MaxAttempts: 2}),
		idempotencykey.Config{ServerErrors: idempotencykey.ReleaseServerErrors},
		func(w http.ResponseWriter, _ *http.Request) { l.add(""); w.WriteHeader(503) })
	want(t, rg.pay("k"), 503, false)
	want(t, rg.pay("k"), 503, false)
	want(t, rg.pay("k"), 503, true)
	wantRuns(t, l, 2)
}

func TestMiddleware_PanicEndsTheConnectionAndReleasesTheKey(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{"abort": http.ErrAbortHandler, "bug": "card 4242"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &ledger{}
			rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, "half a resp")
				if l.add("") == 1 {
					panic(value)
				}
			})
			if a := rg.pay("k"); a.err == nil {
				t.Errorf("answered %d %q, want an aborted connection", a.status, a.body)
			}
			want(t, rg.pay("k"), 200, false)
			want(t, rg.pay("k"), 200, true)
			wantRuns(t, l, 2)
		})
	}
}

func TestMiddleware_ParkedRunIsAnsweredWithAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	rg := serve(t, newGuard(t, newMemory(t), oncemill.Irreversible()), idempotencykey.Config{},
		func(http.ResponseWriter, *http.Request) {
			l.add("")
			panic(http.ErrAbortHandler)
		})
	if a := rg.pay("k"); a.err == nil {
		t.Errorf("answered %d, want an aborted connection", a.status)
	}
	a := rg.pay("k")
	wantProblem(t, a, 500, idempotencykey.CodeUnknown)
	if !a.replayed() {
		t.Error("it does not say that it is a replay")
	}
	wantRuns(t, l, 1)
}

func TestMiddleware_ClientThatGoesDoesNotStopTheRun(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	begun, ended := make(chan struct{}), make(chan error, 1)
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}),
		idempotencykey.Config{Route: func(*http.Request) string { return route }})
	rg := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gone := r.Context().Done() // of the request itself
		m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(begun)
			<-gone
			ended <- r.Context().Err()
			l.charge(w, r)
		})).ServeHTTP(w, r)
	}))
	leave(t, rg, begun)
	if err := <-ended; err != nil {
		t.Errorf("the handler's context ended: %v", err)
	}
	until(t, "the response is kept", func() bool { return rg.pay("k").status == 201 })
	want(t, rg.pay("k"), 201, true)
	wantRuns(t, l, 1)
}

func TestMiddleware_RunOfAClientThatHasGoneEndsAfterTheLimit(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan error, 1)
	var runs atomic.Int32
	c := idempotencykey.Config{ServerErrors: idempotencykey.ReleaseServerErrors}
	rg := serveLinger(t, newGuard(t, newMemory(t), oncemill.Policy{}), c, -1,
		func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) > 1 {
				return
			}
			close(begun)
			<-r.Context().Done()
			ended <- context.Cause(r.Context())
			w.WriteHeader(503)
		})
	leave(t, rg, begun)
	if err := <-ended; !errors.Is(err, idempotencykey.ErrClientGone) {
		t.Errorf("the cause is %v", err)
	}
	until(t, "the key is free again", func() bool { return rg.pay("k").status == 200 })
}

func TestMiddleware_DeadlineFromOutsideDoesNotStopTheRun(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}),
		idempotencykey.Config{Route: func(*http.Request) string { return route }})
	rg := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outer, end := context.WithTimeout(r.Context(), time.Hour)
		defer end()
		m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			end()
			if _, set := r.Context().Deadline(); set || r.Context().Err() != nil {
				t.Errorf("the handler's context has a deadline (%v), error %v", set, r.Context().Err())
			}
			l.charge(w, r)
		})).ServeHTTP(w, r.WithContext(outer))
	}))
	want(t, rg.pay("k"), 201, false)
	want(t, rg.pay("k"), 201, true)
	wantRuns(t, l, 1)
}

// leave sends a request, and goes when it is being processed.
func leave(t *testing.T, rg *rig, begun <-chan struct{}) {
	t.Helper()
	conn, err := net.Dial("tcp", rg.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn,
		"POST "+route+" HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 14\r\n\r\n"+`{"amount":100}`)
	<-begun
	conn.Close()
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
		want(t, rg.send(method, route, "", key("k")), 200, false)
		want(t, rg.send(method, route, "", key("k")), 200, true)
		if required {
			wantProblem(t, rg.send(method, route, ""), 400, idempotencykey.CodeMissing)
		} else {
			want(t, rg.send(method, route, ""), 200, false)
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
	want(t, rg.pay("k"), 200, false)
}

func TestMiddleware_OptionalKeyThatIsMissingStillMakesARun(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	rg := serveMemory(t, idempotencykey.Config{Required: idempotencykey.Optional}, l.charge)
	want(t, rg.send("POST", route, "{}"), 201, false)
	want(t, rg.send("POST", route, "{}"), 201, false)
	want(t, rg.pay("k"), 201, false)
	want(t, rg.pay("k"), 201, true)
	wantRuns(t, l, 3)
}

func TestMiddleware_WithoutARouteNothingRuns(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{})
	rg := serveHandler(t, m.Wrap(http.HandlerFunc(l.charge)))
	wantProblem(t, rg.pay("k"), 500, idempotencykey.CodeInternal)
	wantRuns(t, l, 0)
}

func TestMiddleware_HeldRequestsGetTheResponseOfTheFirst(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	begun, end := make(chan struct{}), make(chan struct{})
	rg := serveMemory(t, idempotencykey.Config{MaxWait: 1 << 40, WaitLimit: oncemill.NewWaitLimit(1)},
		func(w http.ResponseWriter, r *http.Request) {
			close(begun)
			<-end
			l.charge(w, r)
		})
	answers := make(chan answer)
	pay := func() { answers <- rg.pay("k") }
	go pay()
	<-begun
	go pay()
	go pay()
	wantProblem(t, <-answers, 409, idempotencykey.CodeInProgress) // one of the two has no place to wait
	close(end)
	a, b := <-answers, <-answers
	if a.status != 201 || b.status != 201 || a.replayed() == b.replayed() {
		t.Errorf("%d %v and %d %v", a.status, a.replayed(), b.status, b.replayed())
	}
	wantRuns(t, l, 1)
}

func TestMiddleware_ProblemsCanBeWrittenInAnotherForm(t *testing.T) {
	t.Parallel()
	rg, release, first := occupiedBy(t, idempotencykey.Config{WriteProblem: func(w http.ResponseWriter,
		_ *http.Request, p idempotencykey.Problem) {
		w.WriteHeader(p.Status)
		io.WriteString(w, p.Code)
	}})
	a := rg.pay("k")
	if a.status != 409 || a.body != idempotencykey.CodeInProgress || a.header.Get("Retry-After") == "" {
		t.Errorf("%d %q %v", a.status, a.body, a.header)
	}
	release()
	want(t, <-first, 201, false)
}
