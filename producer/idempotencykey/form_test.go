package idempotencykey_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// TestMiddleware_BodyThatSomebodyHasReadBeforeIsNoEmptyBody is about what stands around the middleware and looks into a
// form: handlers find the form where it was put, and bodies would count for nothing.
func TestMiddleware_BodyThatSomebodyHasReadBeforeIsNoEmptyBody(t *testing.T) {
	t.Parallel()
	form := header("Content-Type", "application/x-www-form-urlencoded")
	for name, chunked := range map[string]bool{"with a length": false, "chunked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &ledger{}
			m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{
				Route: func(*http.Request) string { return route }, Required: idempotencykey.Optional,
			})
			pay := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				l.add("")
				io.WriteString(w, "paid "+r.FormValue("amount"))
			}))
			rg := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.FormValue("token")
				pay.ServeHTTP(w, r)
			}))
			send := func(body string, options ...option) answer {
				return rg.send("POST", route, body, append(options, form, func(r *http.Request) {
					if chunked {
						r.ContentLength = -1
					}
				})...)
			}
			wantProblem(t, send("token=x&amount=1", key("k")), 500, idempotencykey.CodeInternal)
			wantProblem(t, send("token=x&amount=1000", key("k")), 500, idempotencykey.CodeInternal)
			wantRuns(t, l, 0)
			if a := send("token=x&amount=2"); a.body != "paid 2" { // nobody can repeat it
				t.Errorf("without a key: %d %q", a.status, a.body)
			}
		})
	}
}
