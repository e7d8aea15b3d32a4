package idempotencykey_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

type errorHandler = func(http.ResponseWriter, *http.Request) error

// serveErrors serves a handler that returns errors.
func serveErrors(t *testing.T, store dedupstore.Store, p oncemill.Policy, h errorHandler) *keytest.Rig {
	t.Helper()
	m := keytest.NewMiddleware(t, keytest.NewGuard(t, store, p), idempotencykey.Config{})
	mux := http.NewServeMux()
	mux.Handle(keytest.Route, m.WrapFunc(h))
	return keytest.ServeHandler(t, mux)
}

var errNoLuck = errors.New("no luck")

// TestWrapFunc_ErrorSaysWhatBecomesOfTheKey, returned or given to Fail, under a lease and in an inbox.
func TestWrapFunc_ErrorSaysWhatBecomesOfTheKey(t *testing.T) {
	t.Parallel()
	at := oncemill.Policy{MaxAttempts: 3, Backoff: oncemill.Backoff{Min: 1, Max: 1}}
	for name, c := range map[string]struct {
		err   error
		write int // the handler's status; 0: none
		first int
		runs  int // of three requests
	}{
		"an error":                   {errNoLuck, 0, 500, 3},
		"beside a success":           {errNoLuck, 201, 500, 3},
		"beside a client error":      {errNoLuck, 409, 409, 3},
		"permanent":                  {oncemill.Permanent(errNoLuck), 0, 500, 1},
		"permanent beside a success": {oncemill.Permanent(errNoLuck), 201, 500, 1},
		"permanent beside a 409":     {oncemill.Permanent(errNoLuck), 409, 409, 1},
		"retry after":                {oncemill.RetryAfter(time.Hour, errNoLuck), 0, 500, 1},
		"uncounted":                  {oncemill.Uncounted(errNoLuck), 503, 503, 3},
	} {
		for form, h := range map[string]func(w http.ResponseWriter, r *http.Request) error{
			"returned": func(http.ResponseWriter, *http.Request) error { return c.err },
			"Fail": func(_ http.ResponseWriter, r *http.Request) error {
				idempotencykey.Fail(r, nil)
				idempotencykey.Fail(r.WithContext(r.Context()), c.err)
				idempotencykey.Fail(r, errors.New("a later one"))
				return nil
			},
		} {
			for _, leased := range []bool{true, false} {
				t.Run(fmt.Sprint(name, ", ", form, ", leased: ", leased), func(t *testing.T) {
					t.Parallel()
					box, l := keytest.NewInbox(t), &keytest.Ledger{}
					var store dedupstore.Store = box
					if leased {
						store = box.Memory
					}
					rg := serveErrors(t, store, at, func(w http.ResponseWriter, r *http.Request) error {
						l.Add("")
						if !leased {
							keytest.Write(r.Context(), "row")
						}
						if c.write != 0 {
							w.WriteHeader(c.write)
							io.WriteString(w, "the handler's")
						}
						return h(w, r)
					})
					_, later := errors.AsType[interface {
						error
						RetryAfter() time.Duration
					}](c.err)
					for i := range 3 {
						a := rg.Pay("k")
						switch {
						case later && i > 0:
							keytest.WantProblem(t, a, 503, idempotencykey.CodeUnavailable)
						case c.first == 500:
							keytest.WantProblem(t, a, 500, idempotencykey.CodeFailed)
						default:
							keytest.Want(t, a, c.first, c.runs == 1 && i > 0)
						}
						again := later || c.runs == 3 && (i < 2 || c.write == 503) // an uncounted one has no last attempt
						if got := a.Header.Get("Retry-After"); again != (got != "") {
							t.Errorf("request %d: Retry-After is %q", i, got)
						}
					}
					keytest.WantRuns(t, l, c.runs)
					if n := len(box.Rows()); n != 0 {
						t.Errorf("%d rows are committed", n)
					}
				})
			}
		}
	}
}

// TestWrapFunc_NilIsWrap: what was written is the response.
func TestWrapFunc_NilIsWrap(t *testing.T) {
	t.Parallel()
	box := keytest.NewInbox(t)
	rg := serveErrors(t, box, oncemill.Policy{}, func(w http.ResponseWriter, r *http.Request) error {
		keytest.Write(r.Context(), "row")
		w.WriteHeader(201)
		return nil
	})
	keytest.Want(t, rg.Pay("k"), 201, false)
	keytest.Want(t, rg.Pay("k"), 201, true)
	if n := len(box.Rows()); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// TestWrapFunc_RequestsWithoutARun pass through, and an error without a response is a 500.
func TestWrapFunc_RequestsWithoutARun(t *testing.T) {
	t.Parallel()
	for path, c := range map[string]struct {
		status int
		h      errorHandler
	}{
		"error":   {500, func(http.ResponseWriter, *http.Request) error { return errNoLuck }},
		"written": {404, func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(404); return errNoLuck }},
		"hint then error": {500, func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusEarlyHints)
			return errNoLuck
		}},
		"body": {200, func(w http.ResponseWriter, _ *http.Request) error {
			io.WriteString(w, "part")
			return errors.Join(http.NewResponseController(w).Flush(), errNoLuck)
		}},
		"Fail": {200, func(_ http.ResponseWriter, r *http.Request) error { idempotencykey.Fail(r, errNoLuck); return nil }},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			rg := serveErrors(t, keytest.NewInbox(t), oncemill.Policy{}, c.h)
			a := rg.Send("GET", keytest.Route, "")
			if a.Status != c.status {
				t.Errorf("answered %d %s, want %d", a.Status, a.Body, c.status)
			}
		})
	}
}

// TestWrapFunc_ConflictThatDoesNotEndIsUnavailable: neither the handler's response nor its Permanent counts.
func TestWrapFunc_ConflictThatDoesNotEndIsUnavailable(t *testing.T) {
	t.Parallel()
	for _, result := range []error{nil, errNoLuck, oncemill.Permanent(errNoLuck)} {
		box, l := keytest.NewInbox(t), &keytest.Ledger{}
		box.Conflict = true
		rg := serveErrors(t, box, oncemill.Policy{Backoff: oncemill.Backoff{Min: 1, Max: 1}},
			func(w http.ResponseWriter, _ *http.Request) error {
				l.Add("")
				w.WriteHeader(409)
				return result
			})
		for range 2 {
			a := rg.Pay("k")
			keytest.WantProblem(t, a, 503, idempotencykey.CodeUnavailable)
		}
		keytest.WantRuns(t, l, 2)
	}
}

func TestWrapFunc_ResponseThatWasBrokenOffIsNoSuccess(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	rg := serveErrors(t, keytest.NewMemory(t), oncemill.Policy{}, func(w http.ResponseWriter, _ *http.Request) error {
		l.Add("")
		for range 1000 {
			io.WriteString(w, strings.Repeat("half a report ", 100))
		}
		return oncemill.Permanent(errors.New("the other half is missing"))
	})
	if first := rg.Pay("k"); first.Err == nil {
		t.Errorf("answered %d with %d bytes, want an aborted connection", first.Status, len(first.Body))
	}
	keytest.WantProblem(t, rg.Pay("k"), 500, idempotencykey.CodeUnknown)
	keytest.WantRuns(t, l, 1)
}
