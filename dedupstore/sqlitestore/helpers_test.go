package sqlitestore

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
)

// openAt opens a database as the package doc advises, with other settings where they are given; "" leaves one out.
func openAt(t testing.TB, path string, settings ...string) *sql.DB {
	t.Helper()
	values := url.Values{"_busy_timeout": {"10000"}, "_journal_mode": {"WAL"}, "_txlock": {"immediate"}}
	for i := 0; i < len(settings); i += 2 {
		values.Set(settings[i], settings[i+1])
		if settings[i+1] == "" {
			values.Del(settings[i])
		}
	}
	db, err := sql.Open("sqlite", "file:"+path+"?"+values.Encode())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// newStore returns a store in a new database.
func newStore(t testing.TB, settings ...string) (*Store, *sql.DB) {
	t.Helper()
	db := openAt(t, filepath.Join(t.TempDir(), "test.db"), settings...)
	return storeIn(t, db), db
}

func storeIn(t testing.TB, db *sql.DB) *Store {
	t.Helper()
	s, err := New(db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	request = claimtest.Request
	claim   = claimtest.Claim
)

// beat is a heartbeat of a handler.
func beat(c dedupstore.Claim) dedupstore.Extension {
	return dedupstore.Extension{Claim: c, Lease: time.Minute, Started: true}
}

var succeeded = dedupstore.Finish{
	Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("paid")}, Retention: time.Hour,
}

func mustExec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func count(t testing.TB, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// proof says that the long form of tests is wanted.
func proof() bool { return os.Getenv("ONCEMILL_PROOF") != "" }

// background runs work, and returns what waits for its end.
func background(work func() error) (wait func() error) {
	ended := make(chan error, 1)
	go func() { ended <- work() }()
	return func() error { return <-ended }
}

// inTx runs work in the inbox for a claim that it makes.
func inTx(t testing.TB, s *Store, r dedupstore.Request, work func(ctx context.Context) (dedupstore.Settlement, error)) (dedupstore.Claim, error) {
	t.Helper()
	c := claim(t, s, r, dedupstore.AcquiredRun).Claim
	return c, dedupstore.InTxOne(t.Context(), s.Inbox(), c, work)
}

// newLedger makes a table for effects.
func newLedger(t testing.TB, db *sql.DB) {
	t.Helper()
	mustExec(t, db, `CREATE TABLE IF NOT EXISTS ledger (entry INTEGER PRIMARY KEY, id TEXT NOT NULL)`)
}

func charge(ctx context.Context, tx *sql.Tx, id string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (id) VALUES (?)`, id)
	return err
}

func charges(t testing.TB, db *sql.DB, id string) int {
	t.Helper()
	return count(t, db, `SELECT count(*) FROM ledger WHERE id = ?`, id)
}

// remembered counts the runs that a store knows of.
func remembered(s *Store) (n int) {
	for range s.runs.until.Range {
		n++
	}
	return n
}

// expire ends the lease of every record, as if those who hold them had died long ago.
func expire(t testing.TB, db *sql.DB) {
	t.Helper()
	mustExec(t, db, `UPDATE oncemill_dedup SET lease_until = 1`)
}
