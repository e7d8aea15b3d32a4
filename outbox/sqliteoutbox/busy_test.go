package sqliteoutbox_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

func TestLease_WaitsForTheWriteLock(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"))
	tx := begin(t, db)
	time.AfterFunc(300*time.Millisecond, func() { tx.Rollback() })
	if rows := lease(t, box, "t", time.Minute); len(rows) != 1 {
		t.Errorf("%d rows once the lock was free, want 1", len(rows))
	}
}

func TestStore_WaitsForTheWriteLockNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	begin(t, db)
	for name, operation := range map[string]func(context.Context) error{
		"lease": func(ctx context.Context) error {
			_, err := box.Lease(ctx, outbox.LeaseRequest{Token: "t", Limit: 1, Lease: time.Minute})
			return err
		},
		"settle": func(ctx context.Context) error { return box.Settle(ctx, "t", nil) },
		"clean":  func(ctx context.Context) error { _, err := box.Clean(ctx, 0, 1); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		if err := operation(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Minute {
			t.Errorf("%s: error %v after %v, want the context's after 100 ms", name, err, time.Since(began))
		}
		cancel()
	}
}

func TestStore_ConnectionsKeepTheirSettings(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	for i := range 300 { // contexts that end at any moment
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*2*time.Microsecond)
		box.Lease(ctx, outbox.LeaseRequest{Token: "t", Limit: 1, Lease: time.Minute})
		cancel()
	}
	var taken []*sql.Conn
	for range 5 {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, conn)
		var milliseconds int
		if err := conn.QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&milliseconds); err != nil || milliseconds != 10_000 {
			t.Errorf("a connection came back with busy_timeout %d, %v", milliseconds, err)
		}
	}
	for _, conn := range taken {
		conn.Close()
	}
}
