// Package consumer turns one delivery of a message into one decision: acknowledge it, deliver it again later, reject
// it, or leave it alone.
//
// [Processor.Process] needs no broker. [Processor.ProcessOutputs] is for handlers that produce messages. Workers and
// the Router's middleware, in the packages below transport, carry the decisions out:
//
//	once, err := consumer.New(store, consumer.Config{Group: "billing"})
//	d := consumer.Delivery{Handler: "charge", Topic: "orders", Header: header, Payload: payload}
//	decision := once.Process(ctx, d, handle)
//
// A [Source] hands out the deliveries of a broker and carries out everything that the broker can do with one.
//
// # Guarantees
//
//   - A delivery is acknowledged only when it read a final outcome, wrote one, or published what an outcome still had
//     to publish. The exceptions below are counted.
//   - A handler never runs for a dead letter that it made, nor for what came of one.
//   - A busy key is waited for within bounds. Then its message is sent back with the delay that remains, and is never
//     acknowledged.
//   - Outputs of ProcessOutputs are stored before they are published. If publishing fails, a redelivery publishes them
//     with the same IDs and does not run the handler.
//   - Nothing is recorded for a message without an ID.
//
// The exceptions, each acknowledged without an outcome:
//
//   - the policy lets the message bypass the guard;
//   - no record can be kept of the message (no usable ID, or other content under a known ID), and its dead letter is
//     confirmed;
//   - the message is a dead letter of this handler. If somebody sent it here from DeadLetterTopic, it goes back there
//     first.
//
// # What it does not guarantee
//
// Without Config.DeadLetters a rejected message is lost, or delivered again for ever; that depends on the transport.
//
// [docs/brokers.md] says what each transport does. [docs/guarantees.md] lists every promise with its tests.
//
// [docs/brokers.md]: https://github.com/oncemill/oncemill/blob/main/docs/brokers.md
// [docs/guarantees.md]: https://github.com/oncemill/oncemill/blob/main/docs/guarantees.md
package consumer
