package idempotencykey_test

import (
	"io"
	"net/http"
	"testing"

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
	l := &ledger{}
	rg := serveMemory(t, idempotencykey.Config{}, short(l))
	if a := rg.pay("k"); a.err == nil {
		t.Errorf("answered %d %q, as if that were all", a.status, a.body)
	}
	wantProblem(t, rg.pay("k"), 410, idempotencykey.CodeNotKept)
	wantRuns(t, l, 1)
}
