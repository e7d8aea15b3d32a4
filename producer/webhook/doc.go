// Package webhook receives webhooks. It proves the sender, claims the event's ID, publishes one message and answers at
// once. A consumer behind the publisher does the work:
//
//	guard, err := oncemill.NewGuard(store.Inbox(), oncemill.HighValue()) // a pgstore beside box, a pgoutbox
//	verifier, err := webhook.GitHub(os.Getenv("GITHUB_SECRET"))
//	hooks, err := webhook.New(guard, box, webhook.Config{Sender: "github", Verifier: verifier, Topic: "hooks.github"})
//	http.Handle("/hooks/github", hooks)
//
// Use an outbox as the publisher. Over an inbox (dedupstore.Transactor), Publish gets the inbox's transaction in its
// context, and a pgoutbox joins it: message and claim commit together. Over a leased store, write a [PublisherFunc]
// that begins a transaction, as docs/webhooks.md shows.
//
// # Guarantees
//
//   - Nothing is claimed or published before the signature is proven, in constant time, over the bytes as they came. A
//     signed time must be within 5 minutes.
//   - An event ID is enqueued once within the dedup window. A retry or a replay gets 200 and enqueues nothing. Over an
//     inbox that holds whatever crashes. Over a leased store a crash between publishing and recording makes a second
//     copy, with the same message ID.
//   - 200 means that the message is published, by this request or an earlier one. Senders retry any other answer, as
//     long as a retry can help. No outage uses up an event.
//   - No body, signature or key is logged or sent back.
//
// # Answers
//
// Errors are problem+json (RFC 9457).
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
// # What it does not guarantee
//
//   - That an event is new: GitHub and Shopify sign the body only. Anybody with a request of theirs can send it again
//     under another ID.
//   - Deduplication after the dedup window. A late event is enqueued again, with the same message ID, so use
//     oncemill.HighValue (7 days).
//   - Order. Senders keep none.
//
// [docs/webhooks.md] has each sender's scheme and what production needs.
//
// [docs/webhooks.md]: https://github.com/oncemill/oncemill/blob/main/docs/webhooks.md
package webhook
