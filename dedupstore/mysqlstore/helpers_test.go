package mysqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "12") // unless -parallel says otherwise: most tests wait for the end of a lease
	goleak.VerifyTestMain(m)
}

// proof runs the tests with the counts that are promised.
var proof = os.Getenv("ONCEMILL_PROOF") == "1"

// newDB returns a pool of connections to a new database, with a table of effects.
func newDB(t testing.TB, configure ...func(*mysql.Config)) *sql.DB {
	t.Helper()
	db := mysqltest.Shared(t).NewDatabase(t).Open(t, configure...)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	mustExec(t, db, effectsTable)
	return db
}

const effectsTable = `CREATE TABLE effects (name VARCHAR(200) NOT NULL)`

func newStore(t testing.TB, db *sql.DB) *Store {
	t.Helper()
	s := unmigrated(t, db, Config{})
	if err := s.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func unmigrated(t testing.TB, db *sql.DB, cfg Config) *Store {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	s, err := New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
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

const long = time.Hour

func request(id string) dedupstore.Request {
	return dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id},
		Owner: rand.Text(), Lease: long, Retention: long, MaxAttempts: 5,
	}
}

var claim = claimtest.Claim

// runOf claims a run.
func runOf(t testing.TB, s dedupstore.Store, id string) dedupstore.Claim {
	t.Helper()
	return claim(t, s, request(id), dedupstore.AcquiredRun).Claim
}

var success = dedupstore.Finish{
	Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("paid")}, Retention: long,
}

// effect is the work of a handler.
func effect(ctx context.Context, name string) error {
	_, err := Tx(ctx).ExecContext(ctx, `INSERT INTO effects VALUES (?)`, name)
	return err
}

func wantEffects(t testing.TB, db *sql.DB, name string, want int) {
	t.Helper()
	if n := count(t, db, `SELECT count(*) FROM effects WHERE name = ?`, name); n != want {
		t.Errorf("%s has %d effects, want %d", name, n, want)
	}
}

func wantSetup(t testing.TB, err error, subject string) {
	t.Helper()
	if setup, ok := errors.AsType[*dedupstore.SetupError](err); !ok || setup.Subject != subject {
		t.Errorf("the error is %v, want a SetupError about %s", err, subject)
	}
}
