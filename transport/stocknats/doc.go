// Package stocknats makes Watermill's own NATS adapters (watermill-nats/v2, packages jetstream and nats) as safe as they
// can be, for services that keep them and add consumer.Processor.Middleware to their Router. [JetStream] and [NATS] take
// the adapter's own config and return its subscriber, which replaces the adapter's in the Router:
//
//	import (
//		wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream" // the adapters
//		wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
//		"github.com/nats-io/nats.go" // the client
//		"github.com/nats-io/nats.go/jetstream"
//	)
//
//	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort()) // for this subscriber alone: its Close drains it
//
//	sub, err := stocknats.JetStream(nc, wmjetstream.SubscriberConfig{
//		ResourceInitializer: stocknats.Durable(func(topic string) (string, jetstream.ConsumerConfig) {
//			return "orders", jetstream.ConsumerConfig{Durable: "billing", MaxDeliver: -1}
//		}),
//	}, stocknats.Config{})
//
//	sub, err := stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{
//		QueueGroupPrefix: "billing", // lets several processes share a consumer, as in a rolling update
//		JetStream:        wmnats.JetStreamConfig{DurablePrefix: "billing"},
//	}, stocknats.Config{})
//
//	router.AddMiddleware(once.Middleware)
//	router.AddConsumerHandler("charge", "orders", sub, charge)
//
// # Guarantees
//
//   - What the middleware decides is carried out: a delay is the message's own, not before which it comes back; a message
//     that is rejected is terminated; no nak goes without a delay. While the store does not answer, a message is kept and
//     offered again here, which uses up no deliveries.
//   - A handler may take longer than the ack deadline, and longer than the adapter's AckWaitTimeout: the server is told
//     every third of the deadline that the message is being worked on.
//   - Shutdown, by Close or by the end of the context, lets running handlers finish for up to Config.Grace, with contexts
//     that go on, and their acks reach the server. What was taken and not handed over is given back. The adapter's
//     "send on closed channel" (package jetstream, when a context ends before a backlog) does not happen.
//   - A subscription that can get nothing more ends, with an error in the log, and with it the Router: when the connection
//     is closed for good, when the consumer is deleted, or changed to what Subscribe refuses or to HeadersOnly, and, in package nats,
//     when the server knows of no subscription to what the consumer delivers, as when it has refused this one after a reconnect: in
//     package nats, and of changes, this is noticed within a minute or so. By themselves the adapters stay silent.
//   - What the client of package jetstream reports, such as requests that are refused, is logged, the same once a minute, unless
//     the config has a jetstream.ConsumeErrHandler.
//   - No message is acknowledged because something went wrong. The package nats does so without the option
//     nats.ManualAck: when it cannot decode a message, and when it gives one up. The option is always set here.
//   - A message that cannot be decoded is put off, by 1 s to 1 min, with an error in the log. A header with several
//     values is one with a comma between them (RFC 9110, section 5.3): it neither ends the process nor loses the message.
//   - A message without a Watermill UUID has the ID of its header Nats-Msg-Id, as natsjs finds it, for its UUID. All
//     headers "Nats-…" are left out, which a stream would take for orders if a handler published them again.
//   - The middleware knows the delivery count, and stream, sequence and time, which producer.ExtractPosition uses.
//   - Subscribe refuses a consumer that is not durable, has no explicit acks or has a MaxDeliver, with an error that says
//     what to set.
//
// # What it does not guarantee
//
// Speed: the adapters work on one message at a time per subscription. A message that waits for its retry does not block
// the subscription, one that Config.Hold of the Processor holds does: consumer.NoHold avoids that. A message whose claim
// was lost cannot be left alone: it comes back after Config.Lease. Handlers that outlast Grace are cancelled, and their
// messages left to the ack deadline. In package nats, messages that the client has received and not handed to the adapter
// wait for their ack deadline after a shutdown; package jetstream fetches one at a time. Messages that are put off when a
// shutdown begins are not kept alive any more: with an AckWait below Grace they may be delivered elsewhere meanwhile.
//
// Safe deletion of a stream that is made again under its name: the new one counts from one again, and takes the ack of a message
// that a handler is still at for a message of its own, which is lost. Stop the services first.
//
// transport/natsjs has few of these limits, and runs many handlers at once.
package stocknats
