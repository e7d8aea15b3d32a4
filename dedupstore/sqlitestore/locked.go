package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

// Pauses between tries for the write lock of a database that another process, or another user of it, has. SQLite's own
// patience (busy_timeout) cannot be interrupted, so it is not used here.
const (
	firstPause = time.Millisecond
	lastPause  = 8 * time.Millisecond
)

// A lockedTx is a transaction that has the write lock from its beginning.
type lockedTx struct {
	*sql.Tx
	conn  *sql.Conn
	usual int // the connection's busy_timeout
}

// write has the write lock while it calls change, and commits then, unless change returns an error. The context bounds
// the waiting only: what change does is short.
func (s *Store) write(
	ctx context.Context, enter func(context.Context) error, change func(context.Context, *lockedTx) error,
) error {
	if err := enter(ctx); err != nil {
		return fmt.Errorf("wait for the database's write lock: %w", err)
	}
	defer s.gate.leave()
	detached := context.WithoutCancel(ctx)
	t, err := s.begin(ctx, detached)
	if err != nil {
		return fmt.Errorf("take the database's write lock: %w", err)
	}
	defer t.abort()
	if err := change(detached, t); err != nil {
		return err
	}
	if err := t.commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// begin begins a transaction with the write lock, and tries until ctx ends. The caller has the gate. The transaction is
// bound to txCtx, which should have no end but the caller's.
func (s *Store) begin(ctx, txCtx context.Context) (*lockedTx, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		t, err := s.try(ctx, txCtx)
		switch {
		case err == nil:
			return t, nil
		case !isBusy(err):
			return nil, ended(ctx, err)
		case !pace.Sleep(ctx, pause):
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// try begins, and takes the write lock with a statement that changes nothing: the database may be opened without
// _txlock=immediate. As the transaction's first statement it sees the latest snapshot. Meanwhile the connection's own
// patience is off. Nothing of it waits but for a connection, which ctx bounds.
func (s *Store) try(ctx, txCtx context.Context) (*lockedTx, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	t := &lockedTx{conn: conn}
	if err := conn.QueryRowContext(txCtx, "PRAGMA busy_timeout").Scan(&t.usual); err != nil {
		t.discard()
		return nil, err
	}
	err = t.busyTimeout(txCtx, 0)
	if err == nil {
		t.Tx, err = conn.BeginTx(txCtx, nil)
	}
	if err == nil {
		_, err = t.StmtContext(txCtx, s.statements.touch).ExecContext(txCtx)
	}
	restored := t.busyTimeout(context.WithoutCancel(txCtx), t.usual)
	if err == nil && restored == nil {
		return t, nil
	}
	if t.Tx != nil {
		_ = t.Rollback()
	}
	if restored != nil || !isBusy(err) { // such as an interrupted BEGIN, which may or may not have begun
		t.discard()
	}
	t.conn.Close()
	return nil, errors.Join(err, restored)
}

const touchSQL = `UPDATE "{table}" SET number = number WHERE FALSE`

func (t *lockedTx) busyTimeout(ctx context.Context, milliseconds int) error {
	_, err := t.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", milliseconds))
	return err
}

// commit commits and gives the connection back. After an error it closes it, so that nothing stays open on it.
func (t *lockedTx) commit() error {
	err := t.Commit()
	if err != nil {
		t.discard()
	}
	t.conn.Close()
	return err
}

// abort rolls back, and gives the connection back unless that fails. It may be called after commit.
func (t *lockedTx) abort() {
	if err := t.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		t.discard()
	}
	t.conn.Close()
}

// discard closes the connection. The transaction must be over, in whatever way: the driver ends what is still open.
func (t *lockedTx) discard() {
	_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	t.conn.Close()
}

// ended is the cause of a context that has ended, or else the error.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
