package http_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// It takes as long as a run may go on after its client has gone.
func TestInbox_RunThatGivesUpInSilenceRollsBackAndStoresNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{onPostgresInbox, onMySQLInbox, onSQLiteInbox} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := openFor(t, kind, newPlace(t, kind))
			begun := make(chan struct{})
			g := keytest.NewGuard(t, b.Store, oncemill.Policy{})
			rg := keytest.Serve(t, g, idempotencykey.Config{}, keytest.GivingUp(begun,
				func(r *http.Request) error { return b.Pay(r, "debit") },
				func(r *http.Request) error { return b.Pay(r, "credit") },
			))
			keytest.Leave(t, rg, begun)
			keytest.Want(t, keytest.Retried(t, rg), 201, false)
			if d, c := b.Payments("debit"), b.Payments("credit"); d != 1 || c != 1 {
				t.Errorf("%d debits and %d credits, want one each", d, c)
			}
			if d, c := b.Rows("debit"), b.Rows("credit"); d != 1 || c != 1 {
				t.Errorf("%d and %d rows in the outbox, want one each", d, c)
			}
			keytest.Want(t, rg.Pay("k"), 201, true)
		})
	}
}

func TestInbox_ResponseThatIsShorterThanItSaysIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{onPostgresInbox, onMySQLInbox, onSQLiteInbox} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b, l := openFor(t, kind, newPlace(t, kind)), &keytest.Ledger{}
			rg := keytest.Serve(t, keytest.NewGuard(t, b.Store, oncemill.Policy{}), idempotencykey.Config{},
				func(w http.ResponseWriter, r *http.Request) {
					if err := b.Pay(r, "debit"); err != nil {
						t.Error(err)
					}
					keytest.Short(l)(w, r)
				})
			for _, replayed := range []bool{false, true} {
				a := rg.Pay("k")
				keytest.WantProblem(t, a, 500, idempotencykey.CodeRefused)
				if a.Replayed() != replayed || !strings.Contains(a.Body, "shorter") {
					t.Errorf("replayed %v: %s", a.Replayed(), a.Body)
				}
			}
			if n, rows := b.Payments("debit"), b.Rows("debit"); n+rows != 0 {
				t.Errorf("%d debits, %d rows in the outbox", n, rows)
			}
			keytest.WantRuns(t, l, 1)
		})
	}
}
