// Package franz connects Oncemill with Kafka through franz-go. A [Worker] is a member of a consumer group and runs your
// handler for each record. Make the client with the worker's options:
//
//	w, err := franz.NewWorker(once, charge, franz.Config{Handler: "charge"}) // charge is func(ctx, *kgo.Record) error
//	cl, err := kgo.NewClient(append(w.Opts(), kgo.SeedBrokers(brokers...), kgo.ConsumerGroup("billing"),
//		kgo.ConsumeTopics("orders"))...)
//	err = w.Run(ctx, cl)
//
// [NewBatchWorker] takes a handler of batches. A [Source] does a worker's job for a Watermill Router. The comment of
// [Publisher] says what that promises. There is no worker for share groups (KIP-932).
//
// # Guarantees of Worker and Source
//
//   - An offset is committed only when every record before it in its partition is settled. Settled means that its
//     outcome is stored and published, that its copy in a retry topic is confirmed, or that it is rejected.
//   - Records of a partition, or of a key in it, run one at a time in the order of offsets, through failures: see
//     [Order].
//   - A record is claimed when its handler can start. If a revocation or shutdown comes first, the claim is given back
//     and counts as no attempt.
//   - A record that waits does not endanger the membership. Partitions wait for each other only when Config.MaxInFlight
//     is reached.
//   - Handlers of a revoked partition have half the rebalance timeout to finish, and what is settled is committed. When
//     partitions are lost, handlers are cancelled and nothing is committed.
//   - Offsets never go backwards within an assignment, unless the broker lost the end of its log. The log says so.
//   - When Run's context ends, handlers may finish within Config.Grace, and the last commit is confirmed. No goroutine
//     is left.
//   - Run starts with [Worker.Check], which refuses what cannot work and says what to set.
//   - If Kafka deleted records before the group got to them, an error in the log names their offsets.
//
// # What they do not guarantee
//
//   - That rejected records are kept. Without consumer.Config.DeadLetters the group passes over them, with an error in
//     the log.
//   - A second try under a policy that parks (oncemill.Irreversible). A run that is cut off, or an error without
//     oncemill.NoEffect, leaves the outcome unknown.
//   - Order between partitions, across a retry topic, or when a handler ignores the end of its context.
//   - One run each when offsets are set back further than the policy's Window.
//
// [docs/brokers.md] has each case with the test that shows it.
//
// [docs/brokers.md]: https://github.com/oncemill/oncemill/blob/main/docs/brokers.md#transportfranz
package franz
