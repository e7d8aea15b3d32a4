// Package mysqloutbox is an outbox in MySQL 8 or MariaDB 10.6 and later (tested with MariaDB 10.11), in a table beside
// your own:
//
//	box, err := mysqloutbox.New(db, mysqloutbox.Config{})
//	err = box.Migrate(ctx)
//
//	tx, err := db.BeginTx(ctx, nil)
//	// … INSERT INTO orders …
//	err = box.InSQL(tx).Publish(ctx, producer.Message{Topic: "orders.created", Payload: body})
//	err = tx.Commit()
//	box.Wake() // for a relay in this process; others poll
//
// # Guarantees
//
//   - A row is there if and only if the transaction that wrote it committed.
//   - Any number of relays may share the outbox. While they publish or hang, no transaction is open, and no row is
//     locked.
//   - Relays never block writers, and writers never block relays. But writers of the same message wait for each other,
//     and so do writers of one key in an ordered outbox.
//   - Published and dead rows do not make a look at the table slower; for ordered outboxes see [Config.Ordered].
//   - After a deadlock or a lock timeout the relay's operation is repeated. The caller repeats its own transaction.
//
// # What it does not guarantee
//
//   - One copy after a crash of the server with innodb_flush_log_at_trx_commit other than 1, or after a failover to a
//     replica that lags. Leases and results of the last moment may be forgotten, and their batches are published again,
//     with the same IDs.
//   - A prompt takeover from a relay whose host vanishes or stands still in the middle of a lease. Its locks last until
//     the server closes the connection, for its wait_timeout (by default 8 hours): set some minutes in the relay's DSN.
//   - The message of a dead row that somebody discards while a transaction at REPEATABLE READ, which has read the
//     outbox before, writes the message again. It still sees the row as it was. Write at READ COMMITTED.
//   - A steady clock. It is the database's. Set forward, leases end early; set back, rows are due and leases end later.
//
// max_allowed_packet bounds the size of a message.
package mysqloutbox
