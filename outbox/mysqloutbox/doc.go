// Package mysqloutbox is an outbox in MySQL 8 or MariaDB 10.6 and later (tested with MariaDB 10.11), in a table beside
// your own:
//
//	box, err := mysqloutbox.New(db, mysqloutbox.Config{})
//	err = box.Migrate(ctx)
//
//	tx, err := db.BeginTx(ctx, nil)
//	id := producer.NewID() // in a handler run.ID("created"): the same in each run
//	// … INSERT INTO orders …
//	err = box.InSQL(tx).Publish(ctx, producer.Message{ID: id, Topic: "orders.created", Payload: body})
//	err = tx.Commit()
//	box.Wake() // for a relay in this process; others poll
//
// # Guarantees
//
//   - A row is there if and only if the transaction that wrote it committed.
//   - Any number of relays may share the outbox. While they publish, no transaction is open, and no row is locked. If
//     the host of one vanishes in a transaction, the server ends that after 20 s.
//   - Relays never block writers, and writers never block relays. But writers of the same message wait for each other,
//     and so do writers of one key in an ordered outbox. A row whose message somebody writes again waits for that
//     transaction before it goes on to its next state. Other rows do not wait for it.
//   - Published and dead rows do not make a look at the table slower; for ordered outboxes see [Config.Ordered]. Rows
//     lie in the order of their IDs' times. But beside a transaction that stays open, such as that of a long dump, the
//     server keeps the old entries of the index, and a look passes over them: see information_schema.innodb_trx. Beside
//     a million rows of IDs without a time (not from producer.NewID), the relay is about a third slower.
//   - After a deadlock or a lock timeout the relay's operation is repeated. The caller repeats its own transaction.
//
// # What it does not guarantee
//
//   - One copy after a crash of the server with innodb_flush_log_at_trx_commit other than 1, or after a failover to a
//     replica that lags. Leases and results of the last moment may be forgotten, and their batches are published again,
//     with the same IDs.
//   - The end of a writer's transaction whose host vanishes. It is yours, with your wait_timeout (by default 8 hours):
//     set some minutes in the DSN.
//   - That a repeated message blocks no others at REPEATABLE READ in MySQL 8, which then locks what lies before its
//     row, too, until the transaction ends. MariaDB does not. Write at READ COMMITTED there.
//   - A steady clock. It is the database's. Set forward, leases end early; set back, rows are due and leases end later.
//
// max_allowed_packet bounds the size of a message.
package mysqloutbox
