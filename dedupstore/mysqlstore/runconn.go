package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync/atomic"
)

// A runConn is the connection of a run, which the pool lends for so long. Statements of the inbox begin and end its
// transaction, so that a *sql.Tx of it needs none of its own.
type runConn struct {
	driver.Conn
	over atomic.Bool // the transaction has ended
}

// transactionOn makes the transaction that a handler gets of a connection of the pool. Call over when it has ended.
func transactionOn(conn any) (tx *sql.Tx, over func(), err error) {
	c := &runConn{Conn: conn.(driver.Conn)}
	db := sql.OpenDB(c)
	if tx, err = db.BeginTx(context.Background(), nil); err != nil {
		_ = db.Close()
		return nil, nil, err
	}
	return tx, func() {
		c.over.Store(true)
		_ = tx.Rollback()
		_ = db.Close()
	}, nil
}

// Connect implements [driver.Connector].
func (c *runConn) Connect(context.Context) (driver.Conn, error) { return c, nil }

// Driver implements [driver.Connector].
func (c *runConn) Driver() driver.Driver { return nil }

// Close implements [driver.Conn]: the connection is the pool's.
func (c *runConn) Close() error { return nil }

// BeginTx implements [driver.ConnBeginTx]: the transaction has begun.
func (c *runConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return runTx{c}, nil }

// A runTx ends a transaction if the handler does.
type runTx struct{ conn *runConn }

// Commit implements [driver.Tx].
func (t runTx) Commit() error { return t.end("COMMIT") }

// Rollback implements [driver.Tx].
func (t runTx) Rollback() error { return t.end("ROLLBACK") }

func (t runTx) end(statement string) error {
	if t.conn.over.Load() {
		return nil
	}
	_, err := t.conn.ExecContext(context.Background(), statement, nil)
	return err
}

// ExecContext implements [driver.ExecerContext].
func (c *runConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if e, ok := c.Conn.(driver.ExecerContext); ok {
		return e.ExecContext(ctx, query, args)
	}
	return nil, driver.ErrSkip
}

// QueryContext implements [driver.QueryerContext].
func (c *runConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if q, ok := c.Conn.(driver.QueryerContext); ok {
		return q.QueryContext(ctx, query, args)
	}
	return nil, driver.ErrSkip
}

// PrepareContext implements [driver.ConnPrepareContext].
func (c *runConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if p, ok := c.Conn.(driver.ConnPrepareContext); ok {
		return p.PrepareContext(ctx, query)
	}
	return c.Conn.Prepare(query)
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (c *runConn) CheckNamedValue(value *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(value)
	}
	return driver.ErrSkip
}
