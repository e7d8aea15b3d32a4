// Package pgstore keeps records in PostgreSQL, version 14 or later (tested with 15), in two forms.
//
// The inbox settles in the transaction that has the handler's effects: both happen, or neither.
//
//	store, err := pgstore.New(pool, pgstore.Config{})
//	err = store.Migrate(ctx)
//	guard, err := oncemill.NewGuard(store.Inbox(), oncemill.HighValue())
//
//	func charge(ctx context.Context, m Order) error { // the handler
//		tx := pgstore.Tx(ctx) // or pgstore.SQLTx(ctx), with store.InboxSQL()
//		_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance - $1 WHERE id = $2`, m.Amount, m.Account)
//		return err // nil commits the effect and the outcome together; Publish(ctx, …) of a pgoutbox.Outbox joins, too
//	}
//
// The leased form is the store itself, for handlers whose effects are elsewhere. A handler that begins a transaction of
// its own can settle in it:
//
//	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
//	// in the handler:
//	err = store.Join(ctx, tx) // or store.JoinSQL
//	err = tx.Commit(ctx)
//
// # Guarantees
//
//   - A claim is one statement in a transaction of its own, and waits for no lock of a transaction that handles a
//     message: a copy of a running message is answered Busy at once. Claims of a batch share a statement and a commit.
//   - Inbox: in this database there is no second effect of a key within its window, whatever crashes. A holder whose
//     lease was taken over cannot commit. When the answer to a commit is lost, the record is read until it tells; a
//     transaction that had not settled by then cannot do so later.
//   - Inbox: serialization failures and deadlocks make the handler run again, in a new transaction, and count as no
//     attempt. Other failures are recorded although the handler's writes are rolled back.
//   - Heartbeats write another row than the one that is settled, so that they never make a transaction under
//     REPEATABLE READ fail. Under SERIALIZABLE PostgreSQL may still refuse a transaction because of rows in the same
//     page, above all while the tables are small; the inbox then repeats it.
//   - Commits wait for the disk, also where the database or the handler has set synchronous_commit = off. Only those
//     of an inbox's claims do not, unless they write an outcome: nothing can be lost by it.
//   - Nothing is kept in a session, which PgBouncer in transaction mode asks for, if the pool's
//     default_query_exec_mode suits that too.
//
// # What it does not guarantee
//
// The leased form has the limits of every lease: a holder that dies after its effect, or outlives its lease, leaves an
// effect that a second run repeats. Effects outside of the inbox's transaction, such as calls of others, are in the
// same position.
//
// The clock is the server's. Set forward, it ends leases and windows early: a duplicate of what has expired by it runs
// again. Set back, it keeps them, and due times, by as much longer. A failover to a replica that had not received
// everything forgets claims and outcomes, and, for an inbox, the effects with them.
//
// A handler that ends the inbox's transaction by raw SQL loses what the inbox is for. This is noticed before anything
// is settled (ErrTxEnded), but what it has committed stays; the run is parked as unknown. RESET ALL is taken for that,
// too, and rolled back. It is not noticed of a handler that commits, begins another transaction, as COMMIT AND CHAIN
// does, and then cannot be asked about that: a statement failed in it, or its connection was lost, as by a timeout
// during a statement, or, under Inbox, it has rows of a query open. The error may say that nothing was committed, and
// its message runs again.
//
// Operations of a batch share statements, under a context that is no message's. Hooks of the pool that look into the
// context (BeforeAcquire, tracers) find nothing of a message there: a pool is for one database, role and search path. A
// handler that changes the search path or the role of the inbox's transaction has to change them back, or to name
// Config.Schema and grant the other role what Migrate says; else the settlement is refused and everything rolled back.
//
// Expired records count as absent at once; they are deleted by [Store.Clean] or [Store.RunCleaning] only. A handler
// that produces outputs publishes them by an outbox in its transaction, or returns them: they are part of the outcome.
package pgstore
