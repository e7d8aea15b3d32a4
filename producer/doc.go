// Package producer gives messages a stable identity and finds it again when they come in.
//
// The outermost layer that can retry makes the ID, once. [NewID] is for a new action, [DeriveID] for one with a natural
// identity. [Stamp] writes the ID into the message, beside the trace context, and every retry keeps it:
//
//	m := producer.Message{ID: producer.DeriveID("orders", order.Number), Topic: "orders.created", Payload: body}
//	err := producer.Stamp(ctx, &m) // before the first attempt to publish
//
// A Watermill program adds the StampDecorator of package oncewatermill to its publisher. [Extract] finds the ID of an
// incoming message, also of one that others stamped.
//
// # Guarantees
//
//   - Stamping a stamped message changes nothing.
//   - A message without a valid ID is refused before anything is sent. The error names the field or header.
//   - IDs that others gave carry their namespace. Two CloudEvents of different sources never share an ID, and no
//     CloudEvent shares one with a message of yours.
//   - An ID header that cannot be used is an error. Extract does not pass over it to another header.
//   - Equal fingerprints of one scheme mean equal content. The limits are SHA-256, the fields that you chose and, for
//     fractions in JSON, IEEE 754 doubles.
//
// # What it does not guarantee
//
//   - That an ID is unique. If you give two actions one ID, they are one message.
//   - That a message is published once. A publisher may send it again after a lost ack, with the same ID.
//
// [docs/guarantees.md] says what consumers do with the ID.
//
// [docs/guarantees.md]: https://github.com/oncemill/oncemill/blob/main/docs/guarantees.md
package producer
