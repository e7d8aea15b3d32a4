// Package sqlitestore keeps dedup records in a table of an SQLite database: no server, pure Go, for services on a
// single machine. It is made for modernc.org/sqlite, which it imports.
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
// It has two forms. The Store itself grants leased claims, for handlers whose effects are elsewhere. [Store.Inbox] runs
// handlers whose effects are in the same database in a transaction, in which it also settles. Both are a
// [dedupstore.Store], of the same records. A handler under the leased form that has a transaction of its own may settle
// in it, too: [Store.Join].
//
// # Guarantees
//
//   - Every operation is atomic, and idempotent per owner token. Any number of processes on one machine may share the
//     file.
//   - In the inbox what a handler writes with [Tx], what an outbox of the same database writes, and the outcome are
//     committed together or not at all, whatever is killed when. A failure is recorded after its writes are rolled
//     back.
//   - The claim is a transaction of its own: a twin of a running message is answered at once, also while the handler's
//     transaction has the write lock. A heartbeat of that run neither waits for the lock nor fails.
//   - A commit whose answer is lost is looked up in the record.
//   - The operations of a batch share a transaction, and one that cannot be written harms no other. A claim that is
//     refused anyway, such as a duplicate of a finished message, is refused without the write lock.
//   - Committed records survive a killed process. With synchronous=FULL, which is SQLite's default, they survive a
//     power cut as far as the disk keeps what it confirmed.
//   - Join commits once: a second transaction of the same run, and a failure after the commit, are refused.
//   - Old records cost a claim next to nothing, and are removed in small steps: [Store.RunCleaning].
//
// # What it does not guarantee
//
// SQLite has one writer. In the inbox there is one handler at a time in a database, and everybody else who writes waits
// for it, heartbeats of other claims included: keep handlers short, wait for no network in them, and let the lease be
// longer than what may have to wait for each other, with the longest handler as its least. The handler uses [Tx] only:
// what it writes past it, through the database, waits for its own transaction until SQLite gives up, or, where the pool
// has one connection, until its context ends; and so does a transaction that is held by hand while claims are extended.
//
// Other programs do not take turns with this store. An import that commits row by row, and begins the next transaction
// at once, leaves only the moment in between. Claims and heartbeats then wait for seconds, some in vain, which is
// logged as a store that is down. Let such a program write many rows in a transaction, and pause between them.
//
// A handler does not end its transaction. The store notices ([dedupstore.ErrEnded]), and the run is parked as unknown,
// also by whoever claims the key when the process has died after that; but what was committed is there. It returns the
// errors of its statements: SQLite ends a transaction by itself when a disk is full or a statement is interrupted, and
// what comes after is written outside of any.
//
// The database is one file. What a handler writes to an attached one is not committed together with the outcome: under
// WAL SQLite commits each file by itself, and the outcome first. When the process dies in between, or the other file's
// disk is full, the message counts as done, and those writes are lost.
//
// A process that dies keeps its keys until their leases end. Then a claim takes the key over, as soon as it gets the
// write lock. If the holder is not dead but late, in a transaction of another process, the claim waits for its end.
//
// When SQLite's log has grown, the next commit copies it to the file and waits for the disk: single claims take as long
// as that, most often while old records are removed. A claim beside very many records also reads more pages
// than fit in SQLite's cache (2 MB a connection, unless PRAGMA cache_size says otherwise).
//
// The clock is that of this machine. When it is set forward, leases and windows end early: what a machine without a
// clock of its own did before the network told it the time is forgotten then, and its duplicates run again. So do
// leases when the machine was suspended. When the clock is set back, they last longer by as much. Fences grow in either
// case, as long as the record is kept.
//
// The file must be on a local disk; SQLite's locks do not work on network file systems. While a process has it open
// nothing else may replace, move or delete it, nor the -wal and -shm files beside it: connections go on with the old
// file, and what they commit is lost. Nor may anything but the one SQLite library open it in that process, not even to
// copy it: closing the file drops the locks of the whole process.
//
// # Backups
//
// The last commits are in the file that ends in -wal, also after the process was killed: a copy of the database file
// alone lacks them, without a word. VACUUM INTO 'copy.db', said by the program or in SQLite's shell, makes a whole copy
// while the program runs; or stop all processes, and copy both files. Before a copy is put in the place of a database,
// stop all processes and remove the -wal and -shm files of what was there: SQLite would write what is left in them into
// the copy, and destroy it.
//
// What the copy lacks is forgotten, effects, outcomes and rows of an outbox alike, while the broker counts its messages
// as done: have it deliver them again, from the time of the copy on. What was published since then is published again,
// with the same IDs.
//
// # Opening a database
//
// The store works with any settings but those that [Store.Check] refuses, and needs no patience of SQLite: it waits for
// the write lock by itself, and stops when its context ends. The settings of the snippet are for the transactions of
// the program: WAL, so that readers and the writer do not block each other, a busy_timeout, so that writers wait for
// each other, and _txlock=immediate, because a transaction that begins with a read and writes later is refused if
// somebody else wrote in between. Leave the number of connections unlimited, or more than one, and their caches their
// own: with cache=shared a claim waits for whichever handler runs, longer than its context lasts.
package sqlitestore
