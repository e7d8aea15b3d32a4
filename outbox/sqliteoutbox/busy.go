package sqliteoutbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"
)

// shortWait is how long SQLite waits for the write lock, in milliseconds. Nothing can interrupt that wait.
const shortWait = 50

// patiently repeats a write while somebody else has the write lock, until ctx ends. SQLite's own busy_timeout ignores
// contexts, and would hold up a relay that must stop. The write gets its own connection. SQLITE_BUSY changes nothing,
// so repeating is safe. It must begin with a write: then it waits for the lock instead of failing on an old snapshot.
func (o *Outbox) patiently(ctx context.Context, write func(*sql.Conn) error) error {
	conn, err := o.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var usual int
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&usual); err != nil {
		return err
	}
	defer setBack(context.WithoutCancel(ctx), conn, usual)
	if err := setWait(ctx, conn, shortWait); err != nil {
		return err
	}
	return whileBusy(ctx, func() error { return write(conn) })
}

// whileBusy does something again while somebody else has the lock, until ctx ends.
func whileBusy(ctx context.Context, do func() error) error {
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for {
		err := do()
		if !isBusy(err) {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

func setWait(ctx context.Context, conn *sql.Conn, milliseconds int) error {
	_, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", milliseconds))
	return err
}

// setBack resets a connection. If that fails, the connection does not go back to the pool.
func setBack(ctx context.Context, conn *sql.Conn, usual int) {
	if setWait(ctx, conn, usual) != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// isBusy reports whether another connection has the lock.
func isBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == codes.SQLITE_BUSY
}
