package idempotencykey_test

import (
	"io"
	"net/http"
	"strings"
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
	for _, kind := range []string{onPostgresInbox, onSQLiteInbox} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b, l := openFor(t, kind, newPlace(t, kind)), &ledger{}
			rg := serve(t, newGuard(t, b.store, oncemill.Policy{}), idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
				if err := b.pay(r, "debit"); err != nil {
					t.Error(err)
				}
				short(l)(w, r)
			})
			for _, replayed := range []bool{false, true} {
				a := rg.pay("k")
				wantProblem(t, a, 500, idempotencykey.CodeRefused)
				if a.replayed() != replayed || !strings.Contains(a.body, "shorter") {
					t.Errorf("replayed %v: %s", a.replayed(), a.body)
				}
			}
			if n, rows := b.payments("debit"), b.rows("debit"); n+rows != 0 {
				t.Errorf("%d debits, %d rows in the outbox", n, rows)
			}
			wantRuns(t, l, 1)
		})
	}
}
