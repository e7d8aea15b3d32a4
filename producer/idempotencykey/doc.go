// Package idempotencykey makes HTTP requests safe to be sent again: the header Idempotency-Key as
// draft-ietf-httpapi-idempotency-key-header-07 describes it, and as Stripe practises it. The first request with a key runs the
// handler; every repeat gets its response.
//
//	keys, err := idempotencykey.New(guard, idempotencykey.Config{
//		Account: func(r *http.Request) (string, error) { return auth.Account(r.Context()) },
//	})
//	mux.Handle("POST /payments", keys.Wrap(http.HandlerFunc(pay)))
//
//	func pay(w http.ResponseWriter, r *http.Request) {
//		run := oncemill.FromContext(r.Context())
//		charge(r.Context(), run.ID("charge")) // the same ID however often the client sends the request
//		w.WriteHeader(http.StatusCreated)
//	}
//
// A client keeps one key over its retries:
//
//	tr, err := idempotencykey.NewTransport(nil, idempotencykey.TransportConfig{})
//	client := &http.Client{Transport: tr}
//
// # Guarantees
//
//   - Keys belong to an account, an API (Config.Group), a method and a route. Requests that differ in one of these never see
//     each other's responses.
//   - A repeat gets the status, the chosen headers and the body of the first response, byte for byte, and
//     Idempotent-Replayed: true. Whatever the handler answered is kept, 500 included, for Policy.Window or
//     Policy.FailureWindow.
//   - While a request runs, others with its key are answered with 409 and a Retry-After, or wait (Config.MaxWait). A key that
//     comes with another request, by method, route, path, query, body or chosen headers, is answered with 422. Refusals
//     are application/problem+json (RFC 9457) and are never kept.
//   - A client that goes away does not stop a run: it has Config.Linger to end. A handler that then gives up without a word
//     has made no response.
//   - A handler that panics releases its key, and the panic goes on. A repeat runs the handler again, at most
//     Policy.MaxAttempts times; under a policy that parks, the outcome is unknown instead.
//   - Credentials, cookies and headers that nobody chose are not stored. Nothing of a body is in logs, spans or reasons.
//
// What of all this holds against crashes is the guard's promise: see the tiers in docs/guarantees.md. With a lease alone, the
// effect and the response are two writes, and a crash in between runs the handler again when the lease ends. With an inbox
// (dedupstore.Transactor), the handler's writes, its outbox rows and the response commit in one transaction: the response is
// sent after the commit, a status of 500 and above rolls the writes back and is kept, a lower one commits them. If they cannot
// be committed, as in PostgreSQL after a statement that failed, the client gets a 500 (code not-committed) instead. Nothing of a
// run is kept whose transaction PostgreSQL did not let begin, whatever it answered: the client gets a 503 (code unavailable).
//
// # Responses that are not kept
//
// Up to Config.MaxResponseBody a response is held back until it is stored. With a lease alone, a handler may flush: then the
// response leaves at once and is kept all the same, if it stays within the limit and the handler returns before the end of its
// context; Write and Flush have no errors then when the client has gone. One that grows over the limit leaves too, and
// so does one that is shorter than its Content-Length, and what is sent over a hijacked connection; repeats are told that the
// work is done (410, code response-dropped).
// With an inbox nothing may leave before the commit: flushing and hijacking are not supported, informational responses are
// dropped, and a response over the limit, or shorter than its Content-Length, becomes a 500 (code response-refused) that rolls
// the writes back.
//
// Informational responses and trailers are not part of what is kept. Requests of methods without effect (GET, HEAD, OPTIONS,
// TRACE) never have a key.
//
// # What it does not guarantee
//
// That a client uses a new key for a new action, or that an effect of which the guard knows nothing happens once: pass
// [oncemill.Run.ID] on to it.
package idempotencykey
