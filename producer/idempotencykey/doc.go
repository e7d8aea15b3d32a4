// Package idempotencykey lets clients repeat HTTP requests safely. The first request with an Idempotency-Key runs the
// handler, and every repeat gets its response. It follows draft-ietf-httpapi-idempotency-key-header-07 and Stripe's
// practice.
//
//	keys, err := idempotencykey.New(guard, idempotencykey.Config{
//		Account: func(r *http.Request) (string, error) { return auth.Account(r.Context()) },
//	})
//	mux.Handle("POST /payments", keys.Wrap(http.HandlerFunc(pay)))
//
// In the handler, pass [oncemill.Run.ID] on to the services that you call. It is the same for all repeats. A client
// keeps one key over its retries:
//
//	tr, err := idempotencykey.NewTransport(nil, idempotencykey.TransportConfig{})
//	client := &http.Client{Transport: tr}
//
// # Guarantees
//
//   - A key belongs to an account, an API (Config.Group), a method and a route. Requests that differ in one of these
//     never see each other's responses.
//   - A repeat gets the status, the body, the headers that describe it, and Idempotent-Replayed: true. Every answer of
//     the handler is kept, 500 included, for Policy.Window or Policy.FailureWindow, unless Config.Release says
//     otherwise. Cookies and credentials are not stored.
//   - While a request runs, others with its key get 409 and a Retry-After, or wait (Config.MaxWait). If path, query or
//     body differ, they get 422. Refusals are problem+json (RFC 9457) and are never kept.
//   - A client that goes away does not stop a run: the run has 30 s to end. If the handler then gives up without
//     writing anything, it has made no response.
//   - An error that the handler returns (Middleware.WrapFunc) or gives to Fail, and a panic, release the key. Repeats
//     run the handler again, at most Policy.MaxAttempts times. Under a policy that parks, the outcome is unknown instead.
//   - Nothing of a body is in logs, spans or reasons, unless it is in a handler's error.
//
// # What it does not guarantee
//
// Under a lease, effect and response are two writes: after a crash in between, the handler runs again. Over an inbox
// (dedupstore.Transactor) the handler's writes, its outbox rows and the response commit together. A status of 500 or
// above rolls the writes back, and so does an error. After a deadlock the handler is called again at once.
//
// A response is held back until it is stored. So a handler cannot flush or hijack the connection, and trailers and
// informational responses are dropped. A response that is over Policy.MaxResultBytes, or shorter than its
// Content-Length,
//
//   - under a lease is sent once, and repeats are told that the work is done (410, code response-dropped);
//   - over an inbox becomes a 500 (code response-refused), and the writes are rolled back.
//
// [docs/http.md] has the settings.
//
// [docs/http.md]: https://github.com/oncemill/oncemill/blob/main/docs/http.md
package idempotencykey
