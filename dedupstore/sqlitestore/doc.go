// Package sqlitestore keeps dedup records in a table of an SQLite database, for services on a single machine. It uses
// the driver modernc.org/sqlite: pure Go, no server.
//
//	db, err := sql.Open("sqlite", "file:shop.db?_journal_mode=WAL&_busy_timeout=10000&_txlock=immediate")
//	store, err := sqlitestore.New(db, sqlitestore.Config{})
//	err = store.Migrate(ctx)
//	once, err := consumer.New(store.Inbox(), consumer.Config{Group: "billing"})
//	router.AddMiddleware(oncewatermill.Middleware(once))
//
//	func charge(msg *message.Message) error {
//		tx := sqlitestore.Tx(msg.Context()) // committed together with the outcome
//		_, err := tx.ExecContext(msg.Context(), `INSERT INTO ledger …`)
//		return err
//	}
//
// [Store.Inbox] runs a handler in a transaction and settles in it. The Store itself grants leased claims, for effects
// elsewhere. [Store.Join] settles in a transaction of the handler.
//
// # Guarantees
//
//   - Every operation is atomic, and idempotent for its owner token. Any number of processes on one machine may share
//     the file.
//   - Inbox: what the handler writes with [Tx], outbox rows in it and the outcome commit together or not at all. A
//     failure is recorded after the rollback.
//   - A copy of a running message is answered at once, also while its handler has the write lock.
//   - If the answer to a commit is lost, the store looks it up in the record.
//   - Committed records survive a killed process. With synchronous=FULL, SQLite's default, they survive a power cut as
//     far as the disk does.
//
// # What it does not guarantee
//
//   - Speed beside other writers. SQLite has one writer, so inbox handlers run one at a time: see [Store.Inbox].
//   - An outcome for a handler that ends its own transaction: see [Tx].
//   - Writes to an attached database, which commits by itself: a crash can lose them although the message counts as
//     done.
//   - Steady clocks. Set forward, leases and windows end early, and duplicates may run again. Set back, they last
//     longer. A suspended machine ends leases.
//   - A file on a network, replaced while in use, or opened by another SQLite library in the same process: see [New].
//
// # Backups
//
// The last commits are in the -wal file; the database file alone lacks them. VACUUM INTO 'copy.db' copies the whole
// while the program runs. Or stop all processes and copy both files.
//
// Before you restore, stop all processes and delete the old -wal and -shm files, or SQLite destroys the copy with them.
// What the copy lacks is forgotten: let the broker deliver again from its time on. Messages published since are
// published again, with the same IDs.
package sqlitestore
