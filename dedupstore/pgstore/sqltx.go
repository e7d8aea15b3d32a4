package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill/internal/txctx"
)

// SQLTx returns the transaction that the inbox has begun for the handler. The inbox commits it or rolls it back when the
// handler has returned; a handler that does so by itself gets ErrTxEnded for its run.
//
// It panics outside a run of [Store.InboxSQL].
func SQLTx(ctx context.Context) *sql.Tx {
	s, ok := txctx.From[*sqlSession](ctx)
	if !ok {
		panic("pgstore: SQLTx outside a run of Store.InboxSQL: pass the context that the handler got, and make the guard over Store.InboxSQL()")
	}
	return s.tx
}

// A sqlSession is a transaction of database/sql on a connection of the pool.
type sqlSession struct {
	run    *run
	db     *sql.DB // for this one transaction: so the store holds nothing that must be closed
	tx     *sql.Tx
	cancel context.CancelFunc
	over   bool // the commit was sent
}

var sqlLevels = map[pgx.TxIsoLevel]sql.IsolationLevel{
	"": sql.LevelDefault, pgx.ReadCommitted: sql.LevelReadCommitted, pgx.RepeatableRead: sql.LevelRepeatableRead, pgx.Serializable: sql.LevelSerializable,
}

func (s *Store) beginSQL(ctx context.Context, r *run) (session, error) {
	// The package rolls back when the context of a transaction ends: this one ends with the session.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	q := &sqlSession{run: r, db: stdlib.OpenDBFromPool(s.pool), cancel: cancel}
	var err error
	if q.tx, err = q.db.BeginTx(own, &sql.TxOptions{Isolation: sqlLevels[s.cfg.Isolation]}); err == nil {
		exec := func(ctx context.Context, query string, args ...any) error {
			_, err := q.tx.ExecContext(ctx, query, args...)
			return err
		}
		if err = exec(own, mark); err == nil {
			err = r.look(own, exec)
		}
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

func (q *sqlSession) context(ctx context.Context) context.Context {
	ctx = txctx.With[pgx.Tx](ctx, nil) // one of an outer run is not to be joined
	ctx = txctx.With(ctx, q.tx)
	ctx = txctx.With(ctx, q.run)
	return txctx.With(ctx, q)
}

func (q *sqlSession) commit(ctx context.Context, s *settling) error {
	if _, err := q.tx.ExecContext(ctx, q.run.store.sql.settleIn, s.args(q.run.token)...); err != nil {
		if errors.Is(err, sql.ErrTxDone) {
			return ErrTxEnded
		}
		if codeOf(err) != "" {
			return err
		}
		return fmt.Errorf("%w: %w", errLost, err)
	}
	stop := context.AfterFunc(ctx, q.cancel)
	defer stop()
	q.over = true
	err := q.tx.Commit()
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		err = ErrTxAborted
	}
	return err
}

func (q *sqlSession) end(ctx context.Context) (open bool) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	stop := context.AfterFunc(bounded, q.cancel)
	err := q.tx.Rollback()
	stop()
	q.cancel()
	q.db.Close()
	return q.over || !errors.Is(err, sql.ErrTxDone)
}
