package idempotencykey_test

import (
	"testing"

	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestMiddleware_ResponseThatIsShorterThanItSaysIsNotKeptAsWhole(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	rg := serveMemory(t, idempotencykey.Config{}, keytest.Short(l))
	if a := rg.Pay("k"); a.Err == nil {
		t.Errorf("answered %d %q, as if that were all", a.Status, a.Body)
	}
	keytest.WantProblem(t, rg.Pay("k"), 410, idempotencykey.CodeNotKept)
	keytest.WantRuns(t, l, 1)
}
