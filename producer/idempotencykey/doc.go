// Package idempotencykey makes HTTP requests safe to be sent again: the header Idempotency-Key as
// draft-ietf-httpapi-idempotency-key-header-07 describes it, and as Stripe practises it. The first request with a key
// runs the handler; every repeat gets its response.
//
//	keys, err := idempotencykey.New(guard, idempotencykey.Config{
//		Account: func(r *http.Request) (string, error) { return auth.Account(r.Context()) },
//	})
//	mux.Handle("POST /payments", keys.Wrap(http.HandlerFunc(pay)))
//
// The handler passes [oncemill.Run.ID] on to services that it calls: it is the same for all repeats. A client keeps one
// key over its retries:
//
//	tr, err := idempotencykey.NewTransport(nil, idempotencykey.TransportConfig{})
//	client := &http.Client{Transport: tr}
//
// # Guarantees
//
//   - Keys belong to an account, an API (Config.Group), a method and a route. Requests that differ in one of these
//     never see each other's responses.
//   - A repeat gets the status, the body and the headers that describe it, and Idempotent-Replayed: true. Whatever the
//     handler answered is kept, 500 included, for Policy.Window or Policy.FailureWindow. Cookies and credentials are
//     not stored.
//   - While a request runs, others with its key are answered with 409 and a Retry-After, or wait (Config.MaxWait). A
//     key that comes with another request, by path, query or body, is answered with 422. Refusals are
//     application/problem+json (RFC 9457) and are never kept.
//   - A client that goes away does not stop a run: it has 30 s to end. A handler that then gives up without a word has
//     made no response.
//   - A handler that panics releases its key. A repeat runs the handler again, at most Policy.MaxAttempts times; under
//     a policy that parks, the outcome is unknown instead.
//   - Nothing of a body is in logs, spans or reasons.
//
// With a lease alone, effect and response are two writes: a crash in between runs the handler again after the lease.
// With an inbox (dedupstore.Transactor), the handler's writes, its outbox rows and the response commit in one
// transaction: a status of 500 and above rolls the writes back, a lower one commits them. See docs/http.md.
//
// # Responses
//
// A response is held back until it is stored: a handler can neither flush nor hijack the connection, and informational
// responses and trailers are dropped. With a lease alone, a response that is longer than Policy.MaxResultBytes, or
// shorter than its Content-Length, is sent once; repeats are told that the work is done (410, code response-dropped).
// With an inbox it becomes a 500 (code response-refused), and the writes are rolled back.
package idempotencykey
