// Package webhook receives webhooks: it proves who sent a request, claims the event's ID, publishes one message, and
// answers at once. What the event means is the business of a consumer behind the publisher.
//
//	guard, err := oncemill.NewGuard(store.Inbox(), oncemill.HighValue()) // a pgstore in the database of box, a pgoutbox
//	verifier, err := webhook.GitHub(os.Getenv("GITHUB_SECRET"))
//	hooks, err := webhook.New(guard, box, webhook.Config{Sender: "github", Verifier: verifier, Topic: "hooks.github"})
//	http.Handle("/hooks/github", hooks)
//
// The publisher is best an outbox. With a guard over an inbox (dedupstore.Transactor), Publish gets a context that carries
// the inbox's transaction: an outbox that joins it commits the message and the claim together. A guard over a leased store
// has none: a pgoutbox as it is would refuse every event there, which is answered with 503. Give it one:
//
//	enqueue := webhook.PublisherFunc(func(ctx context.Context, m ...producer.Message) error {
//		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return box.In(tx).Publish(ctx, m...) })
//	})
//
// A sqliteoutbox has no Publish of its own: with sqlitestore, enqueue by box.InSQL(sqlitestore.Tx(ctx)).Publish.
//
// # Guarantees
//
//   - Nothing is claimed or published before the signature is proven, over the bytes as they came in, in constant time,
//     and its time, where the scheme signs one, is within [Config.Tolerance].
//   - An event ID is enqueued once within the dedup window: a retry, a redelivery or a replay gets 200 and enqueues
//     nothing. Over an inbox that holds whatever crashes. Over a leased store a crash between publishing and recording it
//     publishes a second copy, with the same message ID, which an outbox and consumers recognise.
//   - 200 means that the message was published, by this request or by an earlier one. Whatever else happened, the answer
//     is one that senders retry, as long as a retry can help.
//   - The message ID follows from tenant, sender and event ID. The body goes on unchanged.
//   - Nothing of a body, of a signature or of a key is logged, or is in an answer.
//
// # Answers
//
// Errors are problem+json (RFC 9457).
//
//	200  published, now or before; or what the sender asked for (Slack's challenge)
//	400  proven, but of no use: no event ID, one that cannot be recorded, or a header that goes on and is not UTF-8
//	401  not proven: signature, scheme or time
//	405  not POST
//	413  the body is over Config.MaxBody
//	422  the event ID is known with another body, to the store or to the publisher; nothing is enqueued
//	500  a publisher called the event's failure permanent, or ended the inbox's transaction; somebody has to look
//	503  another request is at this event, or the store or the publisher is down, or panicked; with Retry-After
//
// No outage uses up an event: what crashes and failed commits exhausted is run again by the next request.
//
// The body alone is compared, since senders sign a retry anew: of Stripe's events without pending_webhooks, which counts
// down meanwhile. Another body under a known ID is refused, not dropped with a 200, so that the sender shows it as failed. A
// policy with oncemill.MismatchIgnore answers 200 instead.
//
// Stripe's counter has one more consequence: over a leased store, a retry after a crash between publishing and recording has
// another body under the same message ID. An outbox that compares refuses it, and goes on with the first one. The sender gets
// 422 then, if the publisher says so (see [New]), or else 503, until it gives up. Over an inbox it cannot happen.
//
// # What it does not guarantee
//
// GitHub and Shopify sign the body only. Whoever has a request of theirs can send it again, at any time, with another ID or
// other headers: keep requests secret (TLS, no logging of them), and do not believe their headers more than that.
// Standard Webhooks, Stripe and Slack sign ID and time as well.
//
// An event that comes again after the dedup window is enqueued again, with the same message ID. Senders retry for days,
// and people press buttons: oncemill.HighValue (7 days) suits better than the default of 24 hours.
//
// Order: senders do not keep any. The server's timeouts (http.Server.ReadTimeout) are the caller's.
package webhook
