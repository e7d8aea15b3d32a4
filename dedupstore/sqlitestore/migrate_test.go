package sqlitestore

import (
	"context"
	"database/sql"
	_ "embed"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
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

// schema1 is schema.sql of version 1, and so on.
var (
	//go:embed testdata/schema1.sql
	schema1 string
	//go:embed testdata/schema2.sql
	schema2 string
)

func TestMigrate_RecordsOfVersionsBeforeContinue(t *testing.T) {
	t.Parallel()
	for i, old := range []string{schema1, schema2} {
		t.Run(itoa(i+1), func(t *testing.T) {
			t.Parallel()
			continues(t, old, itoa(i+1))
		})
	}
}

func continues(t *testing.T, old, version string) {
	db := openAt(t, filepath.Join(t.TempDir(), "old.db"))
	s, err := New(db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, db, s.in(old)+strings.ReplaceAll(s.in(versionSQL), "{version}", version))
	now := clock().UnixMicro()
	row := func(
		r dedupstore.Request, state dedupstore.State, kind, reason string, decided, lease int64,
	) dedupstore.Claim {
		mustExec(t, db, `
			INSERT INTO oncemill_dedup (key, state, owner, fence, attempts, returned, started, lease_until, due_at,
				first_at, expires_at, scheme, sum, settled, trace, decided, kind, exhausted, truncated, reason, result)
			VALUES (?1, ?2, ?3, ?4, 1, 0, 0, ?5, 0, ?4, ?6, '', '', '', '', ?9, ?7, 0, 0, CAST(?8 AS BLOB), x'')`,
			r.Key.String(), string(state), r.Owner, now, lease, now+sqlstore.Micros(time.Hour), kind, reason, decided)
		return dedupstore.Claim{
			Key: r.Key, Owner: r.Owner, Fence: uint64(now), Attempt: 1, Lease: r.Lease, Retention: r.Retention,
		}
	}
	done := row(request("done"), dedupstore.Finished, "failed", "card refused", now, 0)
	running := row(request("running"), dedupstore.Running, "", "", 0, now+sqlstore.Micros(time.Hour))
	row(request("released"), dedupstore.Retryable, "", "database is down", 0, 0)

	if _, err := dedupstore.ClaimOne(t.Context(), s, request("done")); err == nil {
		t.Error("the version before is used as if it were this one")
	}
	for range 2 {
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a := claim(t, s, request("done"), dedupstore.Done)
	if a.Outcome.Reason != "card refused" || a.Fence != done.Fence {
		t.Errorf("the outcome is %+v, of fence %d", a.Outcome, a.Fence)
	}
	seen := look(t, s, "done")
	if seen.Holder != "" || !seen.Ended.IsZero() || seen.History != nil || seen.Reruns != 0 {
		t.Errorf("the finished record looks like %+v, want nothing that was not known", seen)
	}
	if err := s.Change(t.Context(), seen, dedupstore.Rerun{}); err != nil {
		t.Error(err)
	}
	if seen = look(t, s, "done"); seen.Reruns != 1 || seen.State != dedupstore.Retryable {
		t.Errorf("the record looks like %+v, want one rerun", seen)
	}
	if err := dedupstore.ExtendOne(t.Context(), s, beat(running)); err != nil {
		t.Errorf("a run of before: %v", err)
	}
	finish := succeeded
	finish.Took = time.Second
	if err := dedupstore.SettleOne(t.Context(), s, running, finish); err != nil {
		t.Errorf("a run of before: %v", err)
	}
	if seen := look(t, s, "running"); seen.Ended.Sub(seen.Claimed) != time.Second {
		t.Errorf("its record looks like %+v, want its duration", seen)
	}
	claim(t, s, request("released"), dedupstore.AcquiredRun)
	seen = look(t, s, "released")
	if seen.Attempts != 2 || len(seen.History) != 1 || seen.History[0].Reason != "database is down" {
		t.Errorf("a record that was taken over looks like %+v, want its past", seen)
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
		err := dedupstore.InTxOne(ctx, s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			return succeeded, charge(ctx, Tx(ctx), r.Key.ID)
		})
		cancel()
		if n := charges(t, db, r.Key.ID); (err == nil) != (n == 1) {
			t.Errorf("try %d: %v, %d charges", i, err, n)
		}
	}
	eventually(t, "the write lock is free", func() bool { return lockIsFree(t, db) })
}
