// Package idempotencyconnect lets clients repeat calls of connect-go safely. The first unary call with an
// idempotency-key runs the handler, and every repeat gets its response.
//
//	keys, err := idempotencyconnect.New(guard, idempotencyconnect.Config{Account: auth.Account})
//	path, handler := paymentsv1connect.NewPaymentsHandler(pay, connect.WithInterceptors(authenticate, keys))
//
// In the handler, pass [oncemill.Run.ID] on to the services that you call. It is the same for all repeats. A client
// keeps one key over its retries:
//
//	again, err := idempotencyconnect.NewClientInterceptor(idempotencyconnect.ClientConfig{})
//	client := paymentsv1connect.NewPaymentsClient(http.DefaultClient, url, connect.WithInterceptors(again))
//
// # Guarantees
//
//   - A key belongs to an account, an API (Config.Group) and a procedure. Calls that differ in one of these never see
//     each other's responses.
//   - A repeat gets the message, or the code with its text and details, the metadata that Config.Metadata names, and
//     idempotent-replayed: true. Every answer of the handler is kept, for Policy.Window or Policy.FailureWindow, unless
//     Config.Release says otherwise.
//   - While a call runs, others with its key get Aborted and a RetryInfo, or wait (Config.MaxWait). Another request
//     gets FailedPrecondition, and a call without a key InvalidArgument. Without the store nothing runs: Unavailable.
//   - A client that goes away does not stop a run: the run has 30 s to end.
//   - An error without a code, one that steers (oncemill.RetryAfter and the like), and a panic release the key. Repeats
//     run the handler again, at most Policy.MaxAttempts times, unless the error says otherwise.
//   - Methods with the option NO_SIDE_EFFECTS pass. Streams are refused with Unimplemented.
//
// # What it does not guarantee
//
// Under a lease, effect and response are two writes: after a crash in between, the handler runs again. Over an inbox
// (dedupstore.Transactor) the handler's writes, its outbox rows and the response commit together, and any error rolls
// them back.
//
// A response over Policy.MaxResultBytes is sent once under a lease, and repeats get AlreadyExists; over an inbox it is
// refused with Internal, and the writes are rolled back.
//
// Requests are compared as the bytes that protobuf makes of them. A deployment that changes a request's message may
// refuse a repeat as another request. It makes no second effect.
//
// The key may be in a field of the request (Config.KeyField). An option of the user's own names it, in the .proto file
// beside the field. An option of ours would need a published .proto and a registered number.
//
// [docs/rpc.md] has the settings.
//
// [docs/rpc.md]: https://github.com/oncemill/oncemill/blob/main/docs/rpc.md
package idempotencyconnect
