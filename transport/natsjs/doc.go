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
//   - Nothing is altered on the way: what NATS cannot carry as it is, is refused with an error that names the header or
//     field, and the other messages of the call are published.
//
// # What it does not guarantee
//
// Order: a message that is published again can land behind later ones. One copy in the stream: a repeat after the
// duplicate window (two minutes unless the stream says otherwise) is stored again, with the same oncemill-id.
package natsjs
