// Package mysqlstore keeps dedup records in MySQL 8 or MariaDB 10.6 and later (tested with MariaDB 10.11), by the
// driver github.com/go-sql-driver/mysql. The inbox settles in the transaction that has the handler's effects, so both
// happen or neither:
//
//	db, err := sql.Open("mysql", "shop:secret@tcp(db:3306)/shop")
//	db.SetMaxOpenConns(40)
//	store, err := mysqlstore.New(db, mysqlstore.Config{})
//	err = store.Migrate(ctx)
//	guard, err := oncemill.NewGuard(store.Inbox(), oncemill.HighValue())
//
//	func charge(ctx context.Context, m Order) error { // the handler
//		_, err := mysqlstore.Tx(ctx).ExecContext(ctx, `UPDATE accounts SET balance = balance - ? WHERE id = ?`, …)
//		return err // nil commits the effect and the outcome together
//	}
//
// The store itself grants leased claims, for effects elsewhere.
//
// # Guarantees
//
//   - Claims, settlements and heartbeats are atomic, and wait for no handler's transaction.
//   - Inbox: there is no second effect of a key in this database within its window, whatever crashes. A holder whose
//     lease was taken over cannot commit.
//   - Inbox: when the answer to a commit is lost, the store waits for the end of the transaction, and reads the record.
//   - After a deadlock or a lock timeout the store repeats its operation, and the inbox calls the handler again, in a
//     new transaction. That counts as no attempt.
//   - Nothing depends on the session's time zone, character set or sql_mode, or the server's default isolation. All
//     transactions are READ COMMITTED. The session must write, commit by itself, and return all rows: leave autocommit,
//     tx_read_only and sql_select_limit out of the DSN.
//
// # What it does not guarantee
//
//   - Under a lease, and for effects outside the inbox's transaction, a second effect is possible. The holder dies
//     after its effect, or outlives its lease, and the message runs again.
//   - The clock is the server's. Set forward, it ends leases and windows early; set back, it prolongs them.
//   - A failover to a replica that lags forgets claims and outcomes. An inbox's effects go with them.
//   - A proxy that sends SELECT to replicas, or a cluster with several nodes to write to, may answer with what was true
//     before: connect to one primary.
//   - A handler must not end the inbox's transaction. See [Tx] for what happens then.
//   - Expired records count as absent, but only [Store.Clean] and [Store.RunCleaning] delete them.
//
// [docs/mysql.md] has settings, privileges and connections.
//
// [docs/mysql.md]: https://github.com/oncemill/oncemill/blob/main/docs/mysql.md
package mysqlstore
