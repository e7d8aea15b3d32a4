package pgstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// SQLTx returns the transaction that the inbox began before it called the handler. The inbox commits it or rolls it
// back when the handler has returned. A handler that ends it gets ErrTxEnded for its run, unless it calls Rollback and
// returns an error.
//
// It panics outside a run of [Store.InboxSQL].
func SQLTx(ctx context.Context) *sql.Tx {
	s, ok := txctx.From[*sqlSession](ctx)
	if !ok {
		panic(txctx.NoTx("pgstore: SQLTx outside a run of Store.InboxSQL: pass the context that the handler got, " +
			"and make the guard over Store.InboxSQL()"))
	}
	return s.tx
}

// A sqlSession is a transaction of database/sql on a connection of the pool.
type sqlSession struct {
	run    *run
	db     *sql.DB // for this one transaction: so the store holds nothing that must be closed
	tx     *sql.Tx
	conn   *pgx.Conn // of the transaction
	cancel context.CancelFunc
	giving sync.Mutex  // conn back to the pool
	given  bool        // it may be another's
	broken bool        // it was cut before
	over   bool        // the commit was sent
	ended  atomic.Bool // the transaction was over before it was rolled back, and may have been committed
}

// A watched connector makes connections whose transaction tells the session how it ended: a *sql.Tx does not.
type watchedConnector struct {
	driver.Connector
	session *sqlSession
}

// Connect implements [driver.Connector].
func (w watchedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	watched := watchedConn{conn.(*stdlib.Conn), w.session}
	w.session.giving.Lock()
	defer w.session.giving.Unlock()
	w.session.conn, w.session.given, w.session.broken = watched.Conn.Conn(), false, false
	return watched, nil
}

type watchedConn struct {
	*stdlib.Conn
	session *sqlSession
}

// Close implements [driver.Conn]: it gives the connection back to the pool.
func (w watchedConn) Close() error {
	w.session.giving.Lock()
	defer w.session.giving.Unlock()
	w.session.given = true
	if w.session.broken { // the pool would not see it
		bounded, cancel := context.WithTimeout(context.Background(), sqlstore.EndTimeout)
		defer cancel()
		_ = w.Conn.Conn().Close(bounded)
	}
	return w.Conn.Close()
}

// BeginTx implements [driver.ConnBeginTx].
func (w watchedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := w.Conn.BeginTx(ctx, opts)
	return watchedTx{tx, w}, err
}

// ExecContext implements [driver.ExecerContext].
func (w watchedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	result, err := w.Conn.ExecContext(ctx, query, args)
	if query != aliveSQL {
		w.session.run.used.Store(true)
		w.session.run.note(err)
	}
	return result, err
}

// QueryContext implements [driver.QueryerContext].
func (w watchedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	w.session.run.used.Store(true)
	rows, err := w.Conn.QueryContext(ctx, query, args)
	if err != nil {
		w.session.run.note(err)
	}
	return rows, err
}

// PrepareContext implements [driver.ConnPrepareContext].
func (w watchedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	w.session.run.used.Store(true)
	return w.Conn.PrepareContext(ctx, query)
}

type watchedTx struct {
	driver.Tx
	conn watchedConn
}

// Commit implements [driver.Tx].
func (w watchedTx) Commit() error {
	err := w.Tx.Commit()
	w.conn.session.ended.Store(!refused(err) && !errors.Is(err, pgx.ErrTxCommitRollback))
	return err
}

// Rollback implements [driver.Tx].
func (w watchedTx) Rollback() error {
	w.conn.session.ended.Store(left(w.conn.Conn.Conn()))
	return w.Tx.Rollback()
}

var sqlLevels = map[pgx.TxIsoLevel]sql.IsolationLevel{
	"": sql.LevelDefault, pgx.ReadCommitted: sql.LevelReadCommitted, pgx.RepeatableRead: sql.LevelRepeatableRead,
	pgx.Serializable: sql.LevelSerializable,
}

func (s *Store) beginSQL(ctx context.Context, r *run) (session, error) {
	// The package rolls back when the context of a transaction ends: this one ends with the session.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	q := &sqlSession{run: r, cancel: cancel}
	q.db = sql.OpenDB(watchedConnector{stdlib.GetPoolConnector(s.pool), q})
	q.db.SetMaxIdleConns(0) // the pool keeps them
	var err error
	if q.tx, err = q.db.BeginTx(own, &sql.TxOptions{Isolation: sqlLevels[s.cfg.Isolation]}); err == nil {
		err = q.prepare(own)
	}
	if !stop() { // the transaction has been rolled back, or is about to be
		err = ctx.Err()
	}
	if err == nil {
		return q, nil
	}
	if q.tx != nil {
		_ = q.tx.Rollback()
	}
	cancel()
	q.db.Close()
	return nil, err
}

// prepare marks the transaction, and makes the records of first runs.
func (q *sqlSession) prepare(ctx context.Context) error {
	if len(q.run.Claimed) > 0 { // see beginPgx
		if _, err := q.tx.ExecContext(ctx, mark, milliseconds(q.run.silence())); err != nil {
			return err
		}
	}
	for _, one := range q.run.firsts() {
		rows, err := q.tx.QueryContext(ctx, one.query, one.args...)
		if err != nil {
			return err
		}
		err = q.run.read(rows)
		_ = rows.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (q *sqlSession) context(ctx context.Context) context.Context {
	q.run.used.Store(false)            // statements so far were the inbox's
	ctx = txctx.With[pgx.Tx](ctx, nil) // one of an outer run is not to be joined
	ctx = txctx.With(ctx, q.tx)
	ctx = txctx.With(ctx, q.run)
	return txctx.With(ctx, q)
}

// beat keeps the session busy and ignores errors: database/sql cannot tell a lost connection from one in use. The
// handler's next statement finds out.
func (q *sqlSession) beat(ctx context.Context) error {
	_, _ = q.tx.ExecContext(ctx, aliveSQL)
	return nil
}

const aliveSQL = "-- the handler is alive"

func (q *sqlSession) commit(ctx context.Context) error {
	stop := context.AfterFunc(ctx, q.cut)
	defer stop()
	for made, one := range q.run.settlements() {
		if _, err := q.tx.ExecContext(ctx, one.query, one.args...); err != nil {
			switch {
			case errors.Is(err, sql.ErrTxDone):
				return ErrTxEnded
			case codeOf(err) != "":
				return stopped(made, err)
			case q.conn.PgConn().IsBusy():
				return errBusy
			}
			return fmt.Errorf("%w: %w", errLost, err)
		}
	}
	q.over = true
	err := q.tx.Commit()
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		err = ErrTxAborted
	}
	return err
}

// cut ends the statement that the transaction waits for. database/sql waits for a statement of the handler's goroutine,
// even if the transaction's context has ended. A cut may come when the transaction is over.
func (q *sqlSession) cut() {
	q.cancel()
	q.lose()
}

// lose closes the connection. The transaction's context goes on: what is asked of the transaction then says that the
// connection is lost, and not that the transaction has ended.
func (q *sqlSession) lose() {
	q.giving.Lock()
	defer q.giving.Unlock()
	if !q.given {
		q.broken = true
		_ = q.conn.PgConn().Conn().Close()
	}
}

func (q *sqlSession) end(ctx context.Context) (open bool) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlstore.EndTimeout)
	defer cancel()
	stop := context.AfterFunc(bounded, q.cut)
	_ = q.tx.Rollback()
	stop()
	q.cancel()
	q.db.Close()
	return q.over || !q.ended.Load()
}
