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
	ended := false
	defer func() {
		if !ended { // fn may have panicked
			undoMySQLTx(ctx, conn)
		}
	}()
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(beginMySQLTx, max(1, int(silence.Seconds())))); err != nil {
		return err
	}
	if err := fn(conn); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, endMySQLTx)
	ended = err == nil
	return err
}

const (
	// mySQLIsolation is the name of the variable: MariaDB passes over the comments of MySQL 5.7 and later, and has the
	// old one.
	mySQLIsolation = "/*!80003 transaction_isolation */ /*M! tx_isolation */"

	// MySQLOwnIsolation is the session's value of it.
	MySQLOwnIsolation = "/*!80003 @@SESSION.transaction_isolation */ /*M! @@SESSION.tx_isolation */"

	// The server evaluates all values of a statement before it sets the first variable.
	beginMySQLTx = "SET @oncemill_wait = @@SESSION.wait_timeout, @oncemill_isolation = " + MySQLOwnIsolation + ", " +
		"SESSION wait_timeout = %d, SESSION " + mySQLIsolation + " = 'READ-COMMITTED', autocommit = 0"

	// endMySQLTx commits, and gives the session back what it had.
	endMySQLTx = "SET autocommit = 1, SESSION " + mySQLIsolation + " = @oncemill_isolation, " +
		"SESSION wait_timeout = @oncemill_wait"
)

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
