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
//   - If a handler acknowledges its message and then fails, only the log has the message, and if the Router cannot
//     publish its outputs then, nobody has these. If it nacks, it has failed.
//
// # Commands and events
//
// Command and event processors of package cqrs need only the Router's middleware. Note:
//
//   - A bus makes a new ID at each call. In OnPublish or OnSend set p.Message.UUID to
//     oncemill.FromContext(p.Message.Context()).ID(p.EventName + " " + orderID), for a command with p.CommandName, and
//     keep times and random numbers out of the content. Outside of a handler FromContext panics, so handlers need their
//     own bus.
//   - Over an inbox, give that bus NewPublisher of an outbox. As the Router's publisher the outbox would publish
//     nothing: outputs come after the commit.
//   - AckCommandHandlingErrors and AckCommandErrors store errors as successes. A command that a shutdown cancels is
//     lost. Use oncemill.Permanent instead.
//   - An EventGroupProcessor is one handler: after a failure all of the group run again. Use an EventProcessor, or an
//     inbox.
//   - Ignored messages have succeeded: a newer program does not get them within the window. Without AckOnUnknownEvent
//     unknown ones become dead letters.
//   - Duplicates get no reply from requestreply.
//
// [docs/brokers.md] says what holds under which adapter.
//
// [docs/brokers.md]: https://github.com/oncemill/oncemill/blob/main/docs/brokers.md
package oncewatermill
