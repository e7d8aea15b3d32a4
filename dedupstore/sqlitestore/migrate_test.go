package sqlitestore

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// TestMigrate_ManyAtOnceMakeOneTable opens a file for each, as processes do; SQLite keeps them apart alike.
func TestMigrate_ManyAtOnceMakeOneTable(t *testing.T) {
	t.Parallel()
	for range 10 {
		file := filepath.Join(t.TempDir(), "new.db")
		var all sync.WaitGroup
		for range 6 {
			s, err := New(openAt(t, file, "_busy_timeout", ""), Config{})
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				if err := s.Migrate(t.Context()); err != nil {
					t.Error(err)
					return
				}
				if _, err := dedupstore.ClaimOne(t.Context(), s, request("1")); err != nil {
					t.Errorf("the first claim: %v", err)
				}
			})
		}
		all.Wait()
	}
}

func TestMigrate_MakesAnIndexThatIsMissing(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	mustExec(t, db, `DROP INDEX oncemill_dedup_expires`)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, `SELECT count(*) FROM sqlite_schema WHERE name = 'oncemill_dedup_expires'`); n != 1 {
		t.Error("the index is missing, and RunCleaning reads all records each time")
	}
	claim(t, s, request("1"), dedupstore.Busy)
}

// lockIsFree reports whether nobody has the write lock, and every connection of the pool is without a transaction.
func lockIsFree(t *testing.T, db *sql.DB) bool {
	t.Helper()
	conn, err := openAt(t, fileOf(t, db)).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), "PRAGMA busy_timeout = 50; BEGIN IMMEDIATE; ROLLBACK")
	return err == nil && db.Stats().InUse == 0
}

// TestStore_OperationsThatEndAtAnyMomentLeaveTheWriteLockFree is about contexts that end while BEGIN is under way: the
// driver may then report the end of the context although the transaction has begun.
func TestStore_OperationsThatEndAtAnyMomentLeaveTheWriteLockFree(t *testing.T) {
	t.Parallel()
	tries := 100
	if proof() {
		tries = 3000
	}
	s, db := newStore(t)
	newLedger(t, db)
	for i := range tries {
		end := time.Duration(i%50) * 30 * time.Microsecond
		ctx, cancel := context.WithTimeout(t.Context(), end)
		_ = s.Migrate(ctx)
		cancel()

		r := request(itoa(i))
		c := claim(t, s, r, dedupstore.AcquiredRun).Claim
		ctx, cancel = context.WithTimeout(t.Context(), end)
		err := s.Inbox().InTx(ctx, c, func(ctx context.Context) (dedupstore.Settlement, error) {
			return succeeded, charge(ctx, Tx(ctx), r.Key.ID)
		})
		cancel()
		if n := charges(t, db, r.Key.ID); (err == nil) != (n == 1) {
			t.Errorf("try %d: %v, %d charges", i, err, n)
		}
	}
	eventually(t, "the write lock is free", func() bool { return lockIsFree(t, db) })
}
