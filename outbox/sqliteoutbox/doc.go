// Package sqliteoutbox is an outbox in an SQLite database: no server, pure Go, one table beside the tables of the
// business. It is made for modernc.org/sqlite, which it imports.
//
//	db, err := sqliteoutbox.Open(ctx, "shop.db")
//	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
//	err = box.Migrate(ctx)
//
//	tx, err := db.BeginTx(ctx, nil)
//	// … INSERT INTO orders …
//	err = box.InSQL(tx).Publish(ctx, producer.Message{Topic: "orders.created", Payload: body})
//	err = tx.Commit()
//	box.Wake()
//
// # Guarantees
//
//   - A row is there if and only if the transaction that wrote it committed.
//   - Any number of relays, of several processes on one machine too, may share the database. Leasing and settling are
//     short writes of their own: the database is not locked while messages are published.
//   - Committed rows survive a killed process. With synchronous=FULL, which is SQLite's default and what Open leaves,
//     they survive a power cut as far as the disk keeps what it confirmed.
//   - The cost of a look at the table does not grow with published, delayed or dead rows.
//
// # What it does not guarantee
//
// The clock is that of the process, as SQLite has none of its own. All processes that share a database share a machine
// and so its wall clock. When that is set forward, leases end early, and a batch may be published a second time, with
// the same IDs. When it is set back, rows are due later by as much, and nothing but their number tells (metric
// oncemill.outbox.pending). This makes them due, if the table has its usual name:
//
//	UPDATE oncemill_outbox SET due_at = strftime('%s', 'now') * 1000000, not_before = strftime('%s', 'now') * 1000000
//	WHERE written_at > strftime('%s', 'now') * 1000000 AND not_before = written_at
//	AND published_at IS NULL AND dead_at IS NULL
//
// A transaction is one for a single file. Under WAL SQLite commits each attached database by itself: when the process
// dies in between, or a disk is full, a row is there without what the transaction wrote to another file, or the other
// way round.
//
// SQLite has one writer at a time: business transactions that stay open hold up the relay, and each other. Nor do
// writers take turns: who begins the next transaction right after each commit, such as an import that commits row by
// row, leaves others only the moment in between, and each step of a relay may wait for seconds. One that finds no such
// moment within 10 s fails, and is in the relay's log; what was published, and could not be recorded before its lease
// ended, is published again, with the same ID. Let such a program write many rows in a transaction, and pause between
// them.
//
// The file must be on a local disk; SQLite's locks do not work on network file systems. While a process has it open
// nothing else may replace, move or delete it, nor the -wal and -shm files beside it: connections go on with the old
// file without an error, and what they commit is lost for whoever opens the new one.
//
// How to make backups, and how to put them back, is in the package doc of sqlitestore.
//
// # Opening a database
//
// Open sets what avoids needless "database is locked" errors (SQLITE_BUSY). Who opens the database otherwise should do
// the same: journal_mode WAL, so that readers and the writer do not block each other; a busy_timeout of some seconds,
// so that writers wait for each other; and _txlock=immediate, because a transaction that begins with a read and writes
// later is refused at once, whatever the timeout, if somebody else wrote in between.
package sqliteoutbox
