package sqliteoutbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

func TestNew_ErrorNamesTheField(t *testing.T) {
	t.Parallel()
	_, db := newBox(t)
	for _, table := range []string{`x"y`, "1st", "a b", "main.x", "é", strings.Repeat("x", 49)} {
		_, err := sqliteoutbox.New(db, sqliteoutbox.Config{Table: table})
		if e, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || e.Field != "Config.Table" {
			t.Errorf("table %q: error %v", table, err)
		}
	}
	if _, err := sqliteoutbox.New(nil, sqliteoutbox.Config{}); err == nil {
		t.Error("nil database: no error")
	}
}

func TestNew_TwoTablesAreTwoOutboxes(t *testing.T) {
	t.Parallel()
	first, db := newBox(t)
	second, err := sqliteoutbox.New(db, sqliteoutbox.Config{Table: "Other_1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, second, db, message("1"))
	if a, b := stats(t, first).Pending, stats(t, second).Pending; a != 0 || b != 1 {
		t.Errorf("%d and %d pending rows, want 0 and 1", a, b)
	}
}

func TestMigrate_SeveralAtOnceAndAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shop.db")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { // each opens the new file by itself, as processes do
			db, err := sqliteoutbox.Open(context.Background(), path)
			if err != nil {
				t.Error(err)
				return
			}
			defer db.Close()
			box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
			if err != nil {
				t.Error(err)
				return
			}
			for range 3 {
				if err := box.Migrate(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	db := open(t, path)
	write(t, boxIn(t, db), db, message("1"))
}

func TestOpen_SetsWhatItPromisesOnEveryConnection(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a ?&%20#'name.db")
	db := open(t, path)
	boxIn(t, db)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the database is not where it was asked for: %v", err)
	}
	for range 3 {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for pragma, want := range map[string]string{"journal_mode": "wal", "busy_timeout": "10000", "synchronous": "2"} {
			var got string
			if err := conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s is %q, %v, want %q", pragma, got, err, want)
			}
		}
	}
}

func TestOpen_RefusesWhatIsNotAFile(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", ":memory:", "file:x.db", t.TempDir(), filepath.Join(t.TempDir(), "no", "such", "folder.db")} {
		if db, err := sqliteoutbox.Open(t.Context(), path); err == nil {
			db.Close()
			t.Errorf("%q was opened", path)
		}
	}
}

func TestOpen_TransactionsThatReadFirstWaitForOtherWriters(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	var all sync.WaitGroup
	for _, id := range numbered(20) {
		all.Go(func() {
			tx, err := db.BeginTx(context.Background(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer tx.Rollback()
			var n int
			tx.QueryRow(`SELECT count(*) FROM orders`).Scan(&n)
			if _, err := tx.Exec(`INSERT INTO orders (id) VALUES (?)`, id); err != nil {
				t.Error(err)
			}
			if err := box.InSQL(tx).Publish(context.Background(), message(id)); err != nil {
				t.Error(err)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := count(t, db, "true"); n != 20 {
		t.Errorf("%d rows, want 20", n)
	}
}

func TestPlan_SaysWhatMigrateWouldDo(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "shop.db"))
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := box.Plan(t.Context())
	if err != nil || plan.Found != 0 || plan.Wanted != 1 {
		t.Fatalf("%+v, %v, want that there is no table", plan, err)
	}
	if _, err := db.ExecContext(t.Context(), plan.SQL); err != nil {
		t.Fatal(err)
	}
	if plan, err := box.Plan(t.Context()); err != nil || plan != (dedupstore.Migration{Found: 1, Wanted: 1}) {
		t.Errorf("%+v, %v, want nothing to do", plan, err)
	}
}
