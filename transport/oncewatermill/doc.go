// Package oncewatermill connects Oncemill with Watermill. Put the middleware into a Router and its handlers are
// guarded:
//
//	once, err := consumer.New(store, consumer.Config{Group: "billing"})
//	router.AddMiddleware(oncewatermill.Middleware(once))
//
// [Middleware] works over any subscriber. [Chain] checks its place among Retry, Timeout and PoisonQueue.
// [NewSubscriber] makes a Watermill Subscriber of a [consumer.Source], such as those of transport/natsjs and
// transport/franz. It carries out what the middleware decides. [NewPublisher], [FromPublisher] and [StampDecorator]
// connect the publishers of both sides.
//
// Records are kept under the Router's name of a handler. Under another name everything within the policy's Window runs
// again.
//
// # What it does not guarantee
//
//   - Under Watermill's own adapters an ack may be lost, by a shutdown or an ack deadline. The message comes again and
//     gets its outcome.
//   - Those adapters cannot delay a single redelivery. The next delivery waits instead.
//   - When a publish fails, outputs may land behind those of later messages.
//   - If a handler acknowledges its message and then fails, only the log has the message. If it nacks, it has failed.
//
// [docs/brokers.md] says what holds under which adapter.
//
// [docs/brokers.md]: https://github.com/oncemill/oncemill/blob/main/docs/brokers.md
package oncewatermill
