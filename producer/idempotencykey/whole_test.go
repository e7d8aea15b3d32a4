package idempotencykey_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// short is a handler that announces more than it writes, such as one that copies what a broken connection gave it.
func short(l *ledger) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		l.add("")
		w.Header().Set("Content-Length", "20")
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, `{"amount":10`)
	}
}

func TestMiddleware_ResponseThatIsShorterThanItSaysIsNotKeptAsWhole(t *testing.T) {
	t.Parallel()
	for name, flushed := range map[string]bool{"held back": false, "flushed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &ledger{}
			rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
				short(l)(w, r)
				if flushed {
					w.(http.Flusher).Flush()
				}
			})
			if a := rg.pay("k"); a.err == nil {
				t.Errorf("answered %d %q, as if that were all", a.status, a.body)
			}
			wantProblem(t, rg.pay("k"), 410, idempotencykey.CodeNotKept)
			wantRuns(t, l, 1)
		})
	}
}

func TestMiddleware_FlushedResponseThatIsLongerThanItSaysIsNotKeptAsWhole(t *testing.T) {
	t.Parallel()
	rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "4")
		io.WriteString(w, "paid")
		w.(http.Flusher).Flush()
		io.WriteString(w, "more") // which the server does not send
	})
	if a := rg.pay("k"); a.status != 200 || a.body != "paid" {
		t.Errorf("answered %d %q", a.status, a.body)
	}
	wantProblem(t, rg.pay("k"), 410, idempotencykey.CodeNotKept)
}

func TestInbox_ResponseThatIsShorterThanItSaysIsRolledBack(t *testing.T) {
	t.Parallel()
	b, l := newInbox(t), &ledger{}
	rg := serve(t, newGuard(t, b, oncemill.Policy{}), idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
		write(r.Context(), "row")
		short(l)(w, r)
	})
	wantProblem(t, rg.pay("k"), 500, idempotencykey.CodeRefused)
	a := rg.pay("k")
	wantProblem(t, a, 500, idempotencykey.CodeRefused)
	if !a.replayed() || b.count() != 0 {
		t.Errorf("replayed %v, %d rows", a.replayed(), b.count())
	}
	wantRuns(t, l, 1)
}
