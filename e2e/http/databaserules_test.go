package http_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestDatabase_ResponseWritesAndOutboxRowsCommitTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{onPostgresInbox, onMySQLInbox, onSQLiteInbox} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b, runs := openFor(t, kind, newPlace(t, kind)), &keytest.Ledger{}
			ok := b.Charge(runs)
			var before int
			rg := keytest.Serve(t, keytest.NewGuard(t, b.Store, oncemill.Policy{}), idempotencykey.Config{},
				func(w http.ResponseWriter, r *http.Request) {
					switch {
					case strings.Contains(r.URL.RawQuery, "fail"):
						serverError(b, w, r)
					case strings.Contains(r.URL.RawQuery, "large"):
						ok(w, r)
						w.Write(make([]byte, 1<<20))
					default:
						ok(w, r)
						before = b.Payments(oncemill.FromContext(r.Context()).ID("payments"))
					}
				})
			first := rg.Pay("ok")
			keytest.Want(t, first, 201, false)
			again := rg.Pay("ok")
			keytest.Want(t, again, 201, true)
			id := strings.TrimPrefix(first.Body, "paid ")
			if again.Body != first.Body || before != 0 || b.Payments(id) != 1 || b.Rows(id) != 1 {
				t.Errorf("%q and %q; %d payments before the commit, %d after, %d rows", first.Body, again.Body,
					before, b.Payments(id), b.Rows(id))
			}

			failed := rg.Send("POST", keytest.Route+"?fail", "{}", keytest.Key("failed"))
			keytest.Want(t, failed, 500, false)
			replay := rg.Send("POST", keytest.Route+"?fail", "{}", keytest.Key("failed"))
			keytest.Want(t, replay, 500, true)
			if replay.Body != failed.Body || b.Payments(failed.Body) != 0 || b.Rows(failed.Body) != 0 {
				t.Errorf("%d payments, %d rows of a failure", b.Payments(failed.Body), b.Rows(failed.Body))
			}

			keytest.WantProblem(t, rg.Send("POST", keytest.Route+"?large", "{}", keytest.Key("large")),
				500, idempotencykey.CodeRefused)
			keytest.WantProblem(t, rg.Send("POST", keytest.Route+"?large", "{}", keytest.Key("large")),
				500, idempotencykey.CodeRefused)
			keytest.Want(t, rg.Pay("free"), 201, false)
		})
	}
}
