package http_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestDatabase_ResponseWritesAndOutboxRowsCommitTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{onPostgresInbox, onSQLiteInbox} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b, runs := openFor(t, kind, newPlace(t, kind)), &ledger{}
			ok := b.charge(runs)
			var before int
			rg := serve(t, newGuard(t, b.store, oncemill.Policy{}), idempotencykey.Config{},
				func(w http.ResponseWriter, r *http.Request) {
					switch {
					case strings.Contains(r.URL.RawQuery, "fail"):
						b.serverError(w, r)
					case strings.Contains(r.URL.RawQuery, "large"):
						ok(w, r)
						w.Write(make([]byte, 1<<20))
					default:
						ok(w, r)
						before = b.payments(oncemill.FromContext(r.Context()).ID("payments"))
					}
				})
			first := rg.pay("ok")
			want(t, first, 201, false)
			again := rg.pay("ok")
			want(t, again, 201, true)
			id := strings.TrimPrefix(first.body, "paid ")
			if again.body != first.body || before != 0 || b.payments(id) != 1 || b.rows(id) != 1 {
				t.Errorf("%q and %q; %d payments before the commit, %d after, %d rows", first.body, again.body,
					before, b.payments(id), b.rows(id))
			}

			failed := rg.send("POST", route+"?fail", "{}", key("failed"))
			want(t, failed, 500, false)
			replay := rg.send("POST", route+"?fail", "{}", key("failed"))
			want(t, replay, 500, true)
			if replay.body != failed.body || b.payments(failed.body) != 0 || b.rows(failed.body) != 0 {
				t.Errorf("%d payments, %d rows of a failure", b.payments(failed.body), b.rows(failed.body))
			}

			wantProblem(t, rg.send("POST", route+"?large", "{}", key("large")), 500, idempotencykey.CodeRefused)
			wantProblem(t, rg.send("POST", route+"?large", "{}", key("large")), 500, idempotencykey.CodeRefused)
			want(t, rg.pay("free"), 201, false)
		})
	}
}
