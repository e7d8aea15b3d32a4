// Package natsjs connects Oncemill with NATS JetStream through the client nats.go.
//
// A [Publisher] sends messages to subjects that streams listen on, many at once, and reports on each:
//
//	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
//	err = pub.Publish(ctx, messages...)
//
// # Guarantees
//
//   - Publish returns nil only when a stream has acknowledged every message. Otherwise a *producer.PublishError says
//     which messages are not acknowledged, and whether they may be in the stream all the same.
//   - Within a stream's duplicate window, a message that is published again is stored once: the header Nats-Msg-Id is a
//     hash of message ID, subject, purpose and generation. Dead letters and deliberate replays of a message have
//     another one, so the broker does not swallow them.
//   - Payload and headers arrive as they were given: what NATS cannot carry as it is, is refused with an error that names
//     the header or field, and the other messages of the call are published. One exception: in oncemill-reason, the text
//     for people in a dead letter, control characters become spaces, and white space around it is cut off. Headers of this
//     project and trace context are added, and oncemill-name is left out, as producer.Outgoing does.
//   - A message gives no orders to the stream: every header whose name begins with "Nats-", in any case, is refused.
//     Copied from a message that came in, Nats-Expected-Stream would block it, and Nats-Rollup would purge the stream.
//   - A header oncemill-key that differs from the message's Key is refused, not overwritten.
//
// # What it does not guarantee
//
// Order: a message that is published again can land behind later ones. One copy in the stream: a repeat after the
// duplicate window (two minutes unless the stream says otherwise) is stored again, with the same oncemill-id.
package natsjs
