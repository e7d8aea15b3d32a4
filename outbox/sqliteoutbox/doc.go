// Package sqliteoutbox is an outbox in an SQLite database, in one table beside your own. It uses the driver
// modernc.org/sqlite: pure Go, no server.
//
//	db, err := sqliteoutbox.Open(ctx, "shop.db")
//	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
//	err = box.Migrate(ctx)
//
//	tx, err := db.BeginTx(ctx, nil)
//	id := producer.NewID() // in a handler run.ID("created"): the same in each run
//	// … INSERT INTO orders …
//	err = box.InSQL(tx).Publish(ctx, producer.Message{ID: id, Topic: "orders.created", Payload: body})
//	err = tx.Commit()
//	box.Wake()
//
// # Guarantees
//
//   - A row is there if and only if the transaction that wrote it committed.
//   - Any number of relays may share the database, in several processes on one machine. The database is not locked
//     while they publish.
//   - Committed rows survive a killed process. With synchronous=FULL, the default, they survive a power cut as far as
//     the disk does.
//   - Published, delayed and dead rows do not make a look at the table slower.
//
// # What it does not guarantee
//
//   - A steady clock. It is the machine's. Set forward, leases end early, and a batch may be published again with the
//     same IDs. Set back, rows are due later: see below.
//   - One transaction over two files. Under WAL each attached database commits by itself. After a crash or on a full
//     disk a row may be there without its other file's writes, or the reverse.
//   - Fair turns. SQLite has one writer. A transaction that stays open holds up relays and writers. A program that
//     commits row by row leaves others little time: let it write many rows in a transaction and pause between them. A
//     relay's step that waits for 10 s fails, with a line in the log, and its rows may be published again with the same
//     IDs.
//   - A file on a network, where SQLite's locks do not work, or one that something replaces, moves or deletes while it
//     is open. The same holds for the -wal and -shm files. What is committed after that is lost.
//
// Package sqlitestore says how to back up and restore such a file.
//
// # When the clock was set back
//
// The rows wait, and only their number shows it (metric oncemill.outbox.pending). This makes them due in a table with
// the usual name:
//
//	UPDATE oncemill_outbox SET due_at = strftime('%s', 'now') * 1000000, not_before = strftime('%s', 'now') * 1000000
//	WHERE written_at > strftime('%s', 'now') * 1000000 AND not_before = written_at
//	AND published_at IS NULL AND dead_at IS NULL
package sqliteoutbox
