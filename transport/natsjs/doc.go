// Package natsjs connects Oncemill with NATS JetStream through nats.go. A [Worker] gives the messages of a pull
// consumer to your handler and acknowledges what is done:
//
//	w, err := natsjs.NewWorker(once, js, cons, charge, natsjs.Config{Handler: "charge"})
//	err = w.Run(ctx)
//
// [NewBatchWorker] takes a handler of batches. A [Source] does a worker's job for a Watermill Router. A [Publisher]
// sends messages to streams; its comment says what it promises.
//
// # Guarantees of Worker and Source
//
//   - They acknowledge a message only when the guard says so: see package consumer. A handler cannot settle it.
//   - At most Config.MaxInFlight messages are in flight. Slow handlers and long queues cause no redelivery while the
//     process lives.
//   - Messages with the same order key run one after the other, through failures and retries: see Config.Order.
//   - A retry never comes before its delay. Busy keys and failed attempts never use up a MaxDeliver.
//   - When Run's context ends, handlers may finish within Config.Grace and their acks reach the server. Everything else
//     is given back, and no goroutine is left.
//   - Run ends with an error that says why when it cannot go on. Reconnects, restarts and a new leader do not end it.
//   - A handler never runs for its own dead letters.
//   - Run starts with [Worker.Check], which refuses a consumer that breaks these guarantees and says what to set.
//
// # What they do not guarantee
//
//   - That a message is delivered once. After a lost ack or a crash it comes again; if it has an outcome, it does not
//     run again.
//   - That rejected messages are kept. Without consumer.Config.DeadLetters they are terminated, and nobody gets them. A
//     work-queue stream deletes them.
//   - That every message runs. A limit, a TTL or a purge deletes messages that wait at the server, but what is in
//     flight still runs.
//   - A second try under a policy that parks (oncemill.Irreversible). A run that Grace cuts off, or an error without
//     oncemill.NoEffect, leaves the outcome unknown.
//   - Order across workers, or after a crash: see Config.Order.
//   - Safe acks while a stream is deleted and made again, or lost by a cluster. Stop the workers first.
//   - A MaxDeliver while a replicated consumer has lost its majority: the server counts deliveries that it does not
//     make. A MaxDeliver of -1 avoids that.
//
// [docs/brokers.md] has each case with the test that shows it.
//
// [docs/brokers.md]: https://github.com/oncemill/oncemill/blob/main/docs/brokers.md#transportnatsjs
package natsjs
