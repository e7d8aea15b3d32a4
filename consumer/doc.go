// Package consumer turns one delivery of a message into one decision: acknowledge, deliver again later, reject, or
// leave alone.
//
// [Processor.Process] does so without any broker, [Processor.ProcessOutputs] for handlers that produce messages;
// workers and the middleware of a Router, in the packages below transport, carry decisions out:
//
//	once, err := consumer.New(store, consumer.Config{Group: "billing"})
//	d := consumer.Delivery{Handler: "charge", Topic: "orders", Header: header, Payload: payload}
//	decision := once.Process(ctx, d, handle)
//
// A [Source] has the deliveries of a broker with everything that the broker can do with one.
//
// # Guarantees
//
//   - A delivery is acknowledged only when this delivery read a final outcome, wrote one, or published what an outcome
//     was waiting to publish. Exceptions, each counted: the guard was bypassed as the policy says, or a message that no
//     record can be kept of (no usable ID, other content under a known ID) has its dead letter confirmed, or it is a
//     dead letter of the handler's own, which goes back to DeadLetterTopic before if somebody sent it from there.
//   - A handler never runs for a dead letter that it made, nor for what came of one.
//   - A busy key is held for a bounded time and then sent back with the delay that remains; never acknowledged.
//   - What a handler of ProcessOutputs returns is stored before it is published, and is published with the same IDs by
//     a redelivery if it could not be, without running the handler.
//   - Nothing is recorded for a message without an ID.
//
// # What it does not guarantee
//
// Without Config.DeadLetters, what is rejected is lost, or delivered again for ever, as the transport has it.
package consumer
