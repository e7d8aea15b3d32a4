package idempotencykey_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// TestMiddleware_BodyThatSomebodyHasReadBeforeIsNoEmptyBody is about code around the middleware that reads the form.
// The handler finds the form where that code put it, and the body would not count.
func TestMiddleware_BodyThatSomebodyHasReadBeforeIsNoEmptyBody(t *testing.T) {
	t.Parallel()
	form := keytest.Header("Content-Type", "application/x-www-form-urlencoded")
	for name, chunked := range map[string]bool{"with a length": false, "chunked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &keytest.Ledger{}
			m := newMiddleware(t, idempotencykey.Config{
				Route: func(*http.Request) string { return keytest.Route }, Required: idempotencykey.Optional,
			})
			pay := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				l.Add("")
				io.WriteString(w, "paid "+r.FormValue("amount"))
			}))
			rg := keytest.ServeHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.FormValue("token")
				pay.ServeHTTP(w, r)
			}))
			send := func(body string, options ...keytest.Option) keytest.Answer {
				return rg.Send("POST", keytest.Route, body, append(options, form, func(r *http.Request) {
					if chunked {
						r.ContentLength = -1
					}
				})...)
			}
			keytest.WantProblem(t, send("token=x&amount=1", keytest.Key("k")), 500, idempotencykey.CodeInternal)
			keytest.WantProblem(t, send("token=x&amount=1000", keytest.Key("k")), 500, idempotencykey.CodeInternal)
			keytest.WantRuns(t, l, 0)
			if a := send("token=x&amount=2"); a.Body != "paid 2" { // nobody can repeat it
				t.Errorf("without a key: %d %q", a.Status, a.Body)
			}
		})
	}
}
