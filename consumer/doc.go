// Package consumer turns one delivery of a message into one decision: acknowledge, deliver again later, reject, or
// leave alone.
//
// [Processor.Process] does so without any broker; [Processor.Middleware] does it in a Watermill Router:
//
//	once, err := consumer.New(store, consumer.Config{Group: "billing"})
//	router.AddMiddleware(once.Middleware)
//
// [Subscriber] makes a Watermill Subscriber of a [Source], the deliveries of a broker with everything that the broker can do
// with one: transport/natsjs and transport/franz have sources.
//
// # Guarantees
//
//   - A delivery is acknowledged only when this delivery read a final outcome, wrote one, or published what an outcome
//     was waiting to publish. Exceptions, each counted: the guard was bypassed as the policy says, or a message that no
//     record can be kept of (no usable ID, other content under a known ID) has its dead letter confirmed, or it is a dead
//     letter of the handler's own, which goes back to DeadLetterTopic before if somebody sent it from there.
//   - A handler never runs for a dead letter that it made, nor for what came of one.
//   - A busy key is held for a bounded time and then sent back with the delay that remains; never acknowledged.
//   - What a handler returns is stored before it is published, and is published with the same IDs by a redelivery if
//     the Router could not, without running the handler.
//   - Nothing is recorded for a message without an ID.
//
// # What it does not guarantee
//
// Without Config.DeadLetters, what is rejected is lost, or delivered again for ever, as the transport has it.
//
// Under Watermill's own adapters the ack may be lost after all (shutdown, ack deadline): a redelivery then reads the
// outcome. They cannot delay a single redelivery either, so that the delay of a decision is spent by the next delivery's
// hold; docs/brokers.md says what holds where. The order of outputs against those of later messages is not kept when a
// publish fails. A handler that acknowledges its message itself is outside all of this, and if it fails then, only the
// log has the message; one that nacks it has failed.
package consumer
