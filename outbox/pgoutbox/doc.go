// Package pgoutbox is an outbox in PostgreSQL, version 14 or later (tested with 15): a table beside the tables of the
// business.
//
//	box, err := pgoutbox.New(pool, pgoutbox.Config{})
//	err = box.Migrate(ctx)
//
//	tx, err := pool.Begin(ctx)
//	// … INSERT INTO orders …
//	err = box.In(tx).Publish(ctx, producer.Message{Topic: "orders.created", Payload: body})
//	err = tx.Commit(ctx)
//	box.Wake()            // for a relay in this process
//	err = box.Notify(ctx) // for relays in others, which Listen
//
// # Guarantees
//
//   - A row is there if and only if the transaction that wrote it committed.
//   - What a relay can see survives a crash of the server: the commit of a transaction that writes rows waits for the
//     disk, also where synchronous_commit is off, unless the transaction switches it off after it wrote them.
//   - Any number of relays may share the outbox. Leases are rows of a small table, one for each batch, so that rows are
//     not written when they are leased. No transaction is open, and no lock held, while messages are published, or
//     while a relay does not answer.
//   - Writers are never blocked by relays, nor relays by writers, also not by transactions that stay open. (Writers of
//     the same message wait for each other, and those of one key in an ordered outbox. A statement of somebody else's
//     that locks pending rows, in a transaction that stays open, does hold up all relays.)
//   - The cost of a look at the table does not grow with published, delayed or dead rows (in an ordered outbox see
//     below), nor does it depend on the server's statistics.
//   - Nothing is kept in a session, which PgBouncer in transaction mode asks for, if the pool's default_query_exec_mode
//     suits that too. Only Listen needs a connection of its own to the server.
//
// # What it does not guarantee
//
// A server that crashes may forget leases of the last moment, because their commits do not wait for the disk: such
// batches are published a second time, with the same IDs. So may those that were settled on a primary that was lost
// before a replica had heard of it.
//
// The clock is the database's. When it is set forward, leases end early; when it is set back, rows are due, and leases
// end, later by as much. [outbox.ReplayRequest] compares times with it too.
//
// A transaction that stays open, or anything else that keeps an old snapshot, keeps PostgreSQL from forgetting rows
// that were published: each look then passes over all of those that were published since, a million of them in 0.1 s to
// 1 s. Nothing is lost. Where that takes longer than 10 s, as with tens of millions, nothing is published until the
// snapshot is gone. The outbox relies on autovacuum as every table does.
//
// # Order
//
// With [Config.Ordered], messages that have a key are published in the order in which their transactions committed, and
// those of one transaction in the order in which they were written, for each key. This is promised of first copies: a
// copy may come at any later time. What it costs:
//
//   - A transaction that writes a key waits for all transactions that wrote a key of the same partition to end. Keys
//     that one call of Publish writes are sorted for that. Keys that a transaction writes by several calls are not: two
//     transactions that write the same ones in different orders can wait for each other in a circle, and PostgreSQL
//     ends one of them with the error 40P01. Write them by one call, or repeat the transaction.
//   - A message that is refused, gets no answer, or is delayed by NotBefore holds up the later ones of its key, and of
//     no other key. So does a dead one, until Requeue or Discard, unless [Config.SkipDead]. Each look passes over what
//     is held up, and reads all delayed and dead rows that have a key: an ordered outbox is no place for many of
//     either. Half a million take a second; some millions longer than 10 s, and then new messages stand still, those of
//     other keys too.
//   - Of one key there is one message at a time on its way to the broker, as far as its relay knows.
//   - A dead message that Discard or SkipDead has let others pass may still arrive behind them, if an attempt of it got
//     no answer: a copy that is on its way, or in the hands of a relay that is frozen, cannot be called back.
//   - Requeue and Replay publish at a later time; nothing is put back into its old place among what was published
//     since.
//
// # Debezium
//
// Debezium's outbox event router can read the table instead of a relay: its options route.by.field=topic,
// table.field.event.key=key and route.topic.replacement=${routedByValue} name the columns, and
// table.fields.additional.placement=id:header:oncemill-id keeps the ID. Never run both. It knows nothing of NotBefore,
// order across partitions and dead rows, and marks no row as published: clean the table yourself.
package pgoutbox
