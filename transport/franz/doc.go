// Package franz connects Oncemill with Kafka through the client franz-go.
//
// A [Worker] consumes as a member of a group, and runs a handler for each record under a Processor. The client is made
// with the worker's options, because rebalance callbacks can be given only then:
//
//	w, err := franz.NewWorker(once, charge, franz.Config{Handler: "charge"}) // charge is func(ctx, *kgo.Record) error
//	cl, err := kgo.NewClient(append(w.Opts(), kgo.SeedBrokers(…), kgo.ConsumerGroup("billing"),
//		kgo.ConsumeTopics("orders"))...)
//	err = w.Run(ctx, cl)
//
// A handler of batches gets many records in one call, and returns an error for each: [NewBatchWorker].
//
// A [Source] does the same for Watermill: oncewatermill.NewSubscriber(source) is a Subscriber, and
// oncewatermill.Middleware in the Router steers it. A [Publisher] sends messages, many at once, and reports on each. A
// [ShareWorker] is a worker for share groups, where many members work on one partition, without order.
//
// # Guarantees of Worker and Source
//
//   - An offset is committed only when every record before it in its partition is settled: its outcome is stored and
//     what it produced is published, or a copy in a retry topic is confirmed, or it was rejected. A rejected record is
//     logged as an error with topic, partition, offset and reason, because Kafka cannot end a record, and it stays in
//     the topic; set consumer.Config.DeadLetters to have it somewhere.
//   - Under PerPartition, a partition's records are handled one at a time, in the order of offsets, through failures
//     and retries. Under PerKey that holds for records of a partition with equal keys. Partitions never wait for each
//     other, except for room in Config.MaxInFlight.
//   - A record is claimed when its handler can start, together with others that can. A claim whose handler has not
//     started when its partition is revoked, or when Run's context ends, is given back, and its attempt does not count.
//   - A record that has to wait, for a retry, a busy key or a store that is down, waits here, and what has to come
//     after it waits behind it. Waiting takes no room in the window, asks nobody, and does not endanger membership:
//     fetching is paused when enough lies ready, heartbeats go on. A record that has been offered eight times is a
//     warning in the log; of many at once, one a second is.
//   - When a partition is revoked, what waits is dropped at once, running handlers have half the rebalance timeout
//     until their contexts are cancelled, and what is settled is committed before the partition goes. Partitions that
//     stay work off what was fetched; nothing new is fetched until the revocation ends. When partitions are lost, their
//     handlers are cancelled and nothing is committed.
//   - A commit that fails, or is reported failed, is made up for by the next. Within an assignment, offsets never go
//     backwards; if the broker lost the end of a log and uses offsets again, they do, and it is logged as an error.
//   - When Run's context ends, running handlers may finish within Config.Grace, and the last commit is confirmed before
//     Run returns nil. Run leaves no goroutine behind. Closing the client, which leaves the group, is up to the caller.
//   - What cannot work is refused by Check with an error that says what to set: a client without the worker's options,
//     a missing topic or right, a rebalance timeout that is too short, a client that begins at the end of partitions or
//     at a time, or whose context can end, a retry topic that may not be written to, is compacted or deletes records
//     before they are due, a client that consumes the DeadLetterTopic of its own Processor, and a DeadLetterTopic of a
//     Publisher of this package that is not there, may not be written to, or is compacted.
//   - Records that Kafka has deleted before the group was there, by retention or by hand, are not handled, and an error
//     in the log says from where to where. It may be a false alarm if compaction or markers of transactions were all
//     that was left.
//
// Under PerKey, what is settled behind a record that waits is committed when that is settled, and delivered again after
// a restart or a rebalance before. A record that waits for longer than half the policy's Window is an error in the log,
// once a minute.
//
// Offsets that are set back deliver records again; within the policy's Window their outcomes are still known, and
// nothing runs twice. Check warns of topics that keep records for longer.
//
// # What they do not guarantee
//
// Records that are rejected, without consumer.Config.DeadLetters: those that failed for good or are unknown, have no
// usable ID, or other content under a known ID, are passed over, and the group does not get them again. There is a
// warning when a worker starts.
//
// A second run of what was cut off, under a policy that parks (oncemill.Irreversible): a run whose context ends by
// Config.Grace, a revocation or a lost partition, and any error without oncemill.NoEffect, oncemill.RetryAfter
// included, make the outcome unknown, and the record is not tried again. Under other policies it runs again.
//
// Order when a record goes to a retry topic: what follows it goes on. Order across a handler that ignores the end of
// its context: its partition may have another owner by then, whom the record's claim keeps from running it, but not the
// next. Equal keys in different partitions. Records of a transaction that was aborted are not handled at all.
//
// # What a record is
//
// Topic and origin of a delivery are the source topic, its position is partition, offset and leader epoch ("3-1042-7").
// Headers are passed as they are, binary values too; several different values of one name are joined with ", ". The
// header _watermill_message_uuid is the UUID. The record's key stands in the header oncemill-key, so that dead letters
// keep it. Tombstones are records like any other.
//
// # Retry topics
//
// With Config.Retry, a record whose handler failed is published to a retry topic by the worker's own client, and its
// offset is settled when that is confirmed. The copy has the key, value and headers of the record, and so the same
// message ID: attempts add up, and the dead letter comes after Policy.MaxAttempts. Three more headers bring the copy
// back: oncemill-topic and oncemill-position name the source, oncemill-not-before says when it is due, in Unix
// milliseconds, by the clock of who wrote it. If the copy cannot be published, the record waits in its place. It also
// does so when it waits for something else than its own next attempt (a busy key, a store that is down), or is a dead
// letter: a copy of that would not say where its message came from.
//
// # Share groups
//
// A ShareWorker needs Kafka 4.3 or later. Check says which settings of the group are needed.
//
//   - A record is accepted only when it is settled as above, or when its copy in the retry topic is confirmed. A
//     rejected record is rejected at the broker and logged as an error; set consumer.Config.DeadLetters to have it
//     somewhere.
//   - A record whose handler failed goes on as a copy in ShareConfig.RetryTopic, which waits there. What waits for
//     something else is held here, and its lock is prolonged, as that of a record whose handler runs: all that is one
//     delivery, however long it takes. Waiting takes no room in ShareConfig.MaxInFlight. Others pass what waits or
//     runs, until ten windows wait, or share.partition.max.record.locks (2000) offsets of the partition have been
//     delivered from the first record that is not settled on, also if the others are settled: the broker delivers
//     nothing more of it then, to any member.
//   - The broker drops a record that was delivered share.delivery.count.limit times without being settled. Only
//     shutdowns, crashes, lost connections, moves of a partition's leader and brokers that cannot write the group's
//     state use up deliveries. A record that has had more than half of them is not run: it goes on as a copy with the
//     same ID in ShareConfig.RetryTopic, and nothing else is begun until that is confirmed. One that the topic refuses,
//     because it is too large for it, is run where it is.
//   - A lock that is lost, with a connection or because the process stood still, brings the record again, here or
//     elsewhere. The guard keeps the copies apart, and what has an outcome does not run again. Where the process stood
//     still and no broker has the number 0, Run ends with an error, as kgo 1.22.2 would fetch nothing more.
//   - When Run's context ends, running handlers may finish within ShareConfig.Grace, acknowledgements reach the broker,
//     and everything else is given back. Run leaves no goroutine behind.
//
// What they do not guarantee: order. That a record survives when process or connection die in each of the deliveries
// that are left when it is to be copied (half of the limit, rounded up), before the copy is confirmed, or, if the retry
// topic refuses it, before it is settled. That partitions which a dead member had alone go on before
// share.session.timeout.ms is over. That records are noticed which the broker deletes before they were handled, or does
// not deliver because its log has lost its end and their offsets were used before. Members of the same group that are
// no ShareWorkers can release records, and so use them up. That a dead letter stays one: its copy in the retry topic
// does not say where its message came from, and consumer.Rerun refuses it, so have a Worker run dead letters again.
//
// # Guarantees of Publisher
//
//   - Publish returns nil only when all replicas in sync have every message. Otherwise a *producer.PublishError says
//     which messages are not acknowledged, and whether they may be in the topic all the same.
//   - Repetitions by the client itself make no copies and keep the order of a partition (idempotent producer). A
//     message that is published again by the caller is another record with the same oncemill-id.
//   - A message that is too large, or not what its topic takes, does not take others along: those that Kafka refused
//     together with it are sent again.
//   - Payload, key and headers arrive as they were given. What Kafka cannot carry is refused with an error that names
//     the field. Headers of this project and trace context are added, and oncemill-name is left out, as
//     producer.Outgoing does; oncemill-key becomes the record's key, and is refused if it differs from Message.Key.
package franz
