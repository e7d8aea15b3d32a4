package http_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// It takes as long as a run may go on after its client has gone.
func TestInbox_RunThatGivesUpInSilenceRollsBackAndStoresNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{onPostgresInbox, onSQLiteInbox} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := openFor(t, kind, newPlace(t, kind))
			begun := make(chan struct{})
			rg := serve(t, newGuard(t, b.store, oncemill.Policy{}), idempotencykey.Config{}, givingUp(begun,
				func(r *http.Request) error { return b.pay(r, "debit") },
				func(r *http.Request) error { return b.pay(r, "credit") },
			))
			leave(t, rg, begun)
			want(t, retried(t, rg), 201, false)
			if d, c := b.payments("debit"), b.payments("credit"); d != 1 || c != 1 {
				t.Errorf("%d debits and %d credits, want one each", d, c)
			}
			if d, c := b.rows("debit"), b.rows("credit"); d != 1 || c != 1 {
				t.Errorf("%d and %d rows in the outbox, want one each", d, c)
			}
			want(t, rg.pay("k"), 201, true)
		})
	}
}

func TestInbox_ResponseThatIsShorterThanItSaysIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{onPostgresInbox, onSQLiteInbox} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b, l := openFor(t, kind, newPlace(t, kind)), &ledger{}
			rg := serve(t, newGuard(t, b.store, oncemill.Policy{}), idempotencykey.Config{},
				func(w http.ResponseWriter, r *http.Request) {
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
