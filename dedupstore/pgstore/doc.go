// Package pgstore keeps dedup records in PostgreSQL 14 or later (tested with 15). The inbox settles in the transaction
// that has the handler's effects, so both happen or neither:
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
// The store itself grants leased claims, for effects elsewhere. A handler under a lease can settle in a transaction of
// its own: see [Store.Join].
//
// # Guarantees
//
//   - A claim waits for no transaction that handles a message. A copy of a running message is Busy at once.
//   - Inbox: there is no second effect of a key in this database within its window, whatever crashes. A holder whose
//     lease was taken over cannot commit.
//   - Inbox: when the answer to a commit is lost, the store reads the record until it knows. A transaction that had not
//     settled by then cannot settle later.
//   - Inbox: after a serialization failure or a deadlock the handler runs again in a new transaction, which counts as
//     no attempt. Other failures are recorded, and the handler's writes are rolled back.
//   - Heartbeats never make a transaction under REPEATABLE READ fail. Under SERIALIZABLE they may, and the inbox
//     repeats it.
//   - Commits wait for the disk, whatever synchronous_commit says. Only claims of an inbox do not, because they lose
//     nothing.
//   - Nothing is kept in a session, so PgBouncer in transaction mode works with a suitable default_query_exec_mode.
//
// # What it does not guarantee
//
//   - Under a lease, and for effects outside the inbox's transaction, a second effect is possible. The holder dies
//     after its effect, or outlives its lease, and the message runs again.
//   - The clock is the server's. Set forward, it ends leases and windows early; set back, it prolongs them.
//   - A failover to a replica that lags forgets claims and outcomes. An inbox's effects go with them.
//   - A handler must not end the inbox's transaction. See [Tx] for what happens then.
//   - Expired records count as absent, but only [Store.Clean] and [Store.RunCleaning] delete them.
//
// [docs/postgres.md] has settings, privileges and connections.
//
// [docs/postgres.md]: https://github.com/oncemill/oncemill/blob/main/docs/postgres.md
package pgstore
