package sqliteoutbox_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

var (
	message  = relaytest.Message
	numbered = relaytest.Numbered
	lease    = relaytest.Lease
	settle   = relaytest.Settle
	idsOf    = relaytest.IDs
	stats    = relaytest.Stats
)

// open opens a database that is closed when the test ends.
func open(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sqliteoutbox.Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// newBox returns an outbox in a new database, with a table of orders beside it.
func newBox(t testing.TB) (*sqliteoutbox.Outbox, *sql.DB) {
	t.Helper()
	db := open(t, filepath.Join(t.TempDir(), "shop.db"))
	mustExec(t, db, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	return boxIn(t, db), db
}

func boxIn(t testing.TB, db *sql.DB) *sqliteoutbox.Outbox {
	t.Helper()
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return box
}

func mustExec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

// write commits messages in a transaction of their own.
func write(t testing.TB, box *sqliteoutbox.Outbox, db *sql.DB, messages ...producer.Message) {
	t.Helper()
	tx := begin(t, db)
	if err := box.InSQL(tx).Publish(context.Background(), messages...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func count(t testing.TB, db *sql.DB, where string) (n int) {
	t.Helper()
	if err := db.QueryRow(`SELECT count(*) FROM oncemill_outbox WHERE ` + where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
