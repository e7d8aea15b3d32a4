package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"
)

// InMySQLTx runs fn in a transaction at READ COMMITTED, which locks the records that it finds and no gaps between them,
// on a connection of its own, and commits if fn returns nil. Each statement has a context: the driver's own Commit and
// Rollback would wait for a server that stands still. If this process says nothing for as long as silence, at least a
// second, the server ends the transaction.
func InMySQLTx(ctx context.Context, db *sql.DB, silence time.Duration, fn func(Querier) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	begin := fmt.Sprintf("SET @oncemill_wait = @@SESSION.wait_timeout, SESSION wait_timeout = %d, autocommit = 0",
		max(1, int(silence.Seconds()))) // all values are evaluated before one is set
	for _, statement := range [...]string{begin, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"} {
		if err == nil {
			_, err = conn.ExecContext(ctx, statement)
		}
	}
	if err == nil {
		err = fn(conn)
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, endMySQLTx)
	}
	if err != nil {
		undoMySQLTx(ctx, conn)
	}
	return err
}

// endMySQLTx commits, and gives the session back what it had.
const endMySQLTx = "SET autocommit = 1, SESSION wait_timeout = @oncemill_wait"

// undoMySQLTx obeys ctx: a connection on which it does not succeed is closed, which rolls back, too.
func undoMySQLTx(ctx context.Context, conn *sql.Conn) {
	_, err := conn.ExecContext(ctx, "ROLLBACK")
	if err == nil {
		_, err = conn.ExecContext(ctx, endMySQLTx)
	}
	if err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}
