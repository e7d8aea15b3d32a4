// Package producer gives messages a stable identity, and finds it again on the way in.
//
// An ID is made once, by the outermost layer that can retry: [NewID] for a new action, [DeriveID] for one that has a
// natural identity. [Stamp] writes it into the message, with the trace context beside it, and from then on it stays
// through every retry:
//
//	m := producer.Message{ID: producer.DeriveID("orders", order.Number), Topic: "orders.created", Payload: body}
//	err := producer.Stamp(ctx, &m) // before the first attempt to publish
//
// A Watermill program adds [StampDecorator] to its publisher or Router. [FromWatermill] and [ToWatermill] turn
// publishers into each other. [Extract] finds the ID of a message that came in, also of one that others stamped.
//
// # Guarantees
//
//   - A stamped message is not changed by stamping it again.
//   - What has no valid ID is refused before anything is sent, with an error that names the field or header.
//   - IDs that others gave carry their namespace: two CloudEvents of different sources, or a CloudEvent and one of our
//     own messages, never share an ID.
//   - A present but unusable ID header is an error, never skipped over in favour of another one.
//   - Equal fingerprints of one scheme mean equal content, as far as SHA-256, the chosen fields and, for fractions in
//     JSON, IEEE 754 doubles can tell.
//
// # What it does not guarantee
//
// That an ID is unique: who gives two actions one ID makes them one message. That a message is published once: a
// publisher may send it again after a lost ack, with the same ID.
package producer
