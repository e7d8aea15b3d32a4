package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"
)

// Pauses between tries for the write lock of a database that another process, or another user of it, has. SQLite's own
// patience (busy_timeout) cannot be interrupted, so it is not used here.
const (
	firstPause = time.Millisecond
	lastPause  = 8 * time.Millisecond
)

// errGivenUp says that nobody waits for the write lock any more.
var errGivenUp = errors.New("sqlitestore: nobody waits any more")

// A lockedTx is a transaction that has the write lock from its beginning.
type lockedTx struct {
	*sql.Tx
	conn  *sql.Conn
	usual int // the connection's busy_timeout
}

// begin begins a transaction with the write lock, and tries until ctx ends, or goOn, which is asked between tries, says
// no. The caller has the gate. The transaction is bound to txCtx, which should have no end but the caller's.
func (s *Store) begin(ctx, txCtx context.Context, goOn func() bool) (*lockedTx, error) {
	conn, err := s.connect(ctx, goOn)
	if err != nil {
		return nil, ended(ctx, err)
	}
	t := &lockedTx{conn: conn}
	if err := t.hurry(ctx); err != nil {
		t.discard()
		return nil, ended(ctx, err)
	}
	defer s.lock.got()
	pause := firstPause
	for {
		err := t.try(txCtx, s.statements.touch)
		if err == nil {
			err = t.calm(ctx)
			return t, err
		}
		s.lock.missed()
		if !isBusy(err) { // such as an interrupted BEGIN, which may or may not have begun
			t.discard()
			return nil, ended(ctx, err)
		}
		if !goOn() {
			t.giveBack()
			return nil, ended(ctx, fmt.Errorf("%w: %w", errGivenUp, err))
		}
		if !sleep(ctx, pause) {
			t.giveBack()
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		pause = min(2*pause, lastPause)
	}
}

// connect takes a connection from the pool. One that is opened sets the journal mode, which waits for nobody (SQLITE_BUSY)
// while another process does so for the first time, or recovers the log of one that was killed.
func (s *Store) connect(ctx context.Context, goOn func() bool) (*sql.Conn, error) {
	for {
		conn, err := s.db.Conn(ctx)
		switch {
		case !isBusy(err):
			return conn, err
		case !goOn():
			return nil, fmt.Errorf("%w: %w", errGivenUp, err)
		case !sleep(ctx, lastPause):
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

func always() bool { return true }

// try begins, and takes the write lock with a statement that changes nothing: the database may be opened without
// _txlock=immediate. As the transaction's first statement it sees the latest snapshot.
func (t *lockedTx) try(ctx context.Context, touch *sql.Stmt) error {
	tx, err := t.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.StmtContext(ctx, touch).ExecContext(ctx); err != nil {
		_ = tx.Rollback() // the first error counts
		return err
	}
	t.Tx = tx
	return nil
}

const touchSQL = `UPDATE "{table}" SET number = number WHERE FALSE`

// hurry takes the connection's own patience away.
func (t *lockedTx) hurry(ctx context.Context) error {
	if err := t.conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&t.usual); err != nil {
		return err
	}
	return t.patience(ctx, 0)
}

// calm makes the connection as it was, for who uses the transaction.
func (t *lockedTx) calm(ctx context.Context) error {
	if err := t.patience(context.WithoutCancel(ctx), t.usual); err != nil {
		t.abort()
		return err
	}
	return nil
}

func (t *lockedTx) patience(ctx context.Context, milliseconds int) error {
	_, err := t.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", milliseconds))
	return err
}

// commit commits and gives the connection back. After an error the connection is closed, so that nothing stays open on it.
func (t *lockedTx) commit() error {
	err := t.Commit()
	if err != nil {
		t.discard()
		return err
	}
	t.conn.Close()
	return nil
}

// abort rolls back, and gives the connection back unless that fails. It may be called after commit.
func (t *lockedTx) abort() {
	if err := t.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		t.discard()
	}
	t.conn.Close()
}

// giveBack gives back a connection without a transaction.
func (t *lockedTx) giveBack() {
	if t.patience(context.Background(), t.usual) != nil {
		t.discard()
		return
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

// sleep waits for d, and reports false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
