// Package webhook receives webhooks: it proves who sent a request, claims the event's ID, publishes one message, and
// answers at once. What the event means is the business of a consumer behind the publisher.
//
//	guard, err := oncemill.NewGuard(store.Inbox(), oncemill.HighValue()) // a pgstore beside box, a pgoutbox
//	verifier, err := webhook.GitHub(os.Getenv("GITHUB_SECRET"))
//	hooks, err := webhook.New(guard, box, webhook.Config{Sender: "github", Verifier: verifier, Topic: "hooks.github"})
//	http.Handle("/hooks/github", hooks)
//
// The publisher is best an outbox. Over an inbox (dedupstore.Transactor), Publish gets a context that carries the
// inbox's transaction, and a pgoutbox joins it: message and claim commit together. A leased store has no transaction:
// give the outbox one by a [PublisherFunc], as docs/webhooks.md shows.
//
// # Guarantees
//
//   - Nothing is claimed or published before the signature is proven, over the bytes as they came in, in constant time,
//     and its time, where the scheme signs one, is within 5 minutes.
//   - An event ID is enqueued once within the dedup window: a retry, a redelivery or a replay gets 200 and enqueues
//     nothing. Over an inbox that holds whatever crashes. Over a leased store a crash between publishing and recording
//     publishes a second copy, with the same message ID.
//   - 200 means that the message was published, by this request or by an earlier one. Any other answer is one that
//     senders retry, as long as a retry can help. No outage uses up an event.
//   - Nothing of a body, of a signature or of a key is logged, or is in an answer.
//
// # Answers
//
// Errors are problem+json (RFC 9457). docs/webhooks.md says more.
//
//	200  published, now or before; or what the sender asked for (Slack's challenge)
//	400  proven, but of no use, such as without an event ID
//	401  not proven: signature, scheme or time
//	405  not POST
//	413  the body is over Config.MaxBody
//	422  the event ID is known with another body; nothing is enqueued
//	500  a publisher called the failure permanent, or ended the inbox's transaction; somebody has to look
//	503  another request is at this event, or the store or the publisher is down, or panicked; with Retry-After
//
// # Limits
//
// GitHub and Shopify sign the body only: anybody with a request of theirs can send it again under another ID. An event
// that comes after the dedup window is enqueued again, with the same message ID, so oncemill.HighValue (7 days) suits
// better than the default. Senders keep no order.
package webhook
