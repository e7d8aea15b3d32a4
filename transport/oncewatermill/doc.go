// Package oncewatermill connects Oncemill with Watermill: all that a Router, its middlewares and its publishers need.
//
//	once, err := consumer.New(store, consumer.Config{Group: "billing"})
//	router.AddMiddleware(oncewatermill.Middleware(once))
//
// [Middleware] guards the handlers of a Router, over any subscriber; [Chain] checks its place among Retry, Timeout and
// PoisonQueue. [NewSubscriber] makes a Watermill Subscriber of a [consumer.Source], the deliveries of a broker with
// everything that the broker can do with one: transport/natsjs and transport/franz have sources. [NewPublisher],
// [FromPublisher] and [StampDecorator] are the two faces of a publisher.
//
// Records are kept under the Router's name of a handler: another name runs everything within the policy's Window again.
//
// # What it does not guarantee
//
// Under Watermill's own adapters the ack may be lost after all (shutdown, ack deadline): a redelivery then reads the
// outcome. They cannot delay a single redelivery either, so that the delay of a decision is spent by the next
// delivery's wait; docs/brokers.md says what holds where. The order of outputs against those of later messages is not
// kept when a publish fails. A handler that acknowledges its message itself is outside of all this, and if it fails
// then, only the log has the message; one that nacks it has failed.
package oncewatermill
