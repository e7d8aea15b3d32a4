// Package pgoutbox is an outbox in PostgreSQL 14 or later (tested with 15), in a table beside your own:
//
//	box, err := pgoutbox.New(pool, pgoutbox.Config{})
//	err = box.Migrate(ctx)
//
//	tx, err := pool.Begin(ctx)
//	id := producer.NewID() // in a handler run.ID("created"): the same in each run
//	// … INSERT INTO orders …
//	err = box.In(tx).Publish(ctx, producer.Message{ID: id, Topic: "orders.created", Payload: body})
//	err = tx.Commit(ctx)
//	box.Wake()            // for a relay in this process
//	err = box.Notify(ctx) // for relays in others, which Listen
//
// # Guarantees
//
//   - A row is there if and only if the transaction that wrote it committed.
//   - What a relay sees survives a crash of the server. A commit that writes rows waits for the disk, unless the
//     transaction switches synchronous_commit off after writing them.
//   - Any number of relays may share the outbox. While they publish or hang, no transaction is open and no lock is
//     held.
//   - Relays never block writers, and writers never block relays. But writers of the same message wait for each other,
//     and so do writers of one key in an ordered outbox. A foreign statement that locks pending rows holds up all
//     relays.
//   - Published, delayed and dead rows do not make a look at the table slower, unless [Config.Ordered] is set.
//   - Nothing is kept in a session, so PgBouncer in transaction mode works with a suitable default_query_exec_mode.
//     Only Listen needs a connection of its own.
//
// # What it does not guarantee
//
//   - One copy after a crash of the server, or after a failover to a replica that lags. Leases of the last moment may
//     be forgotten, and so may results. Their batches are published again, with the same IDs.
//   - A steady clock. It is the database's. Set forward, leases end early; set back, rows are due and leases end later.
//   - Speed beside an old snapshot, such as a transaction that stays open. Each look then passes over all rows
//     published since: a million take 0.1 s to 1 s. If a look takes longer than 10 s, nothing is published until the
//     snapshot is gone.
//
// # Debezium
//
// Debezium's outbox event router can read the table instead of a relay:
//
//	route.by.field=topic
//	table.field.event.key=key
//	route.topic.replacement=${routedByValue}
//	table.fields.additional.placement=id:header:oncemill-id
//
// Never run both. Debezium ignores NotBefore, dead rows and order across partitions, and marks no row as published:
// clean the table yourself.
//
// [docs/outbox.md] has rights, settings and repairs.
//
// [docs/outbox.md]: https://github.com/oncemill/oncemill/blob/main/docs/outbox.md
package pgoutbox
