package faults_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// listings are the queries of docs/operations.md.
type listings struct{ parked, dead string }

func TestParked_TheDocumentedQueriesListThem(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(found) != 4 {
		t.Fatalf("docs/operations.md has %d queries, and 4 are tested", len(found))
	}
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		pool := postgrestest.Shared(t).NewDatabase(t).Pool(t)
		store, err := pgstore.New(pool, pgstore.Config{})
		if err == nil {
			err = store.Migrate(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		listings{found[0][1], found[2][1]}.check(t, store, openPool(t, pool))
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "parked.db")+"?_busy_timeout=10000&_journal_mode=WAL&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		store, err := sqlitestore.New(db, sqlitestore.Config{})
		if err == nil {
			err = store.Migrate(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		listings{found[1][1], found[3][1]}.check(t, store, db)
	})
}

func openPool(t *testing.T, pool *pgxpool.Pool) *sql.DB {
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// check parks a key by an error, and one by the death of a Do, which nobody hears of before the next call.
func (l listings) check(t *testing.T, store dedupstore.Store, db *sql.DB) {
	policy := oncemill.Irreversible()
	policy.Logger = slog.New(slog.DiscardHandler)
	guard, err := oncemill.NewGuard(store, policy)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	call := func(id string, result error) (uint64, error) {
		c := oncemill.Call{Key: keyOf(id), MaxWait: 10 * time.Second}
		_, err := oncemill.Do(t.Context(), guard, c, func(context.Context) (int, error) { calls++; return 0, result })
		if failure, ok := errors.AsType[*oncemill.FailedError](err); ok {
			return failure.Fence, err
		}
		return 0, err
	}
	decided := map[string]uint64{}
	if _, err := call("works", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := call("refused", oncemill.Permanent(errFault)); err == nil {
		t.Fatal("a failure is none")
	}
	decided["parked"], _ = call("parked", errFault)
	l.dies(t, store, "alive", time.Minute)
	l.dies(t, store, "died", 20*time.Millisecond)
	l.dies(t, store, "forgotten", time.Millisecond)

	died := []string{keyOf("died").String()}
	until(t, "the end of a lease", func() bool { return slices.Equal(keysOf(t, db, l.dead), died) })
	l.want(t, db, l.parked, "parked")
	calls = 0
	decided["died"], err = call("died", nil)
	if failure, ok := errors.AsType[*oncemill.FailedError](err); !ok || failure.Outcome.Kind != dedupstore.Unknown || calls != 0 {
		t.Errorf("the call after the death: %v and %d runs; want it parked", err, calls)
	}
	l.want(t, db, l.dead)
	l.want(t, db, l.parked, "parked", "died")
	for id, fence := range decided {
		c := oncemill.Call{Key: keyOf(id), Rerun: fence, MaxWait: 10 * time.Second}
		if _, err := oncemill.Do(t.Context(), guard, c, func(context.Context) (int, error) { return 0, nil }); err != nil {
			t.Errorf("the rerun of %s: %v", id, err)
		}
	}
	l.want(t, db, l.parked)
}

// dies claims and starts a run as a holder does that dies. A forgotten one has a record that expires at once.
func (l listings) dies(t *testing.T, store dedupstore.Store, id string, lease time.Duration) {
	t.Helper()
	retention := time.Hour
	if id == "forgotten" {
		retention = time.Millisecond
	}
	a, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
		Key: keyOf(id), Owner: ids.Token(), Lease: time.Minute, Retention: retention, MaxAttempts: 10,
	})
	if err == nil {
		err = dedupstore.ExtendOne(t.Context(), store, dedupstore.Extension{
			Claim: a.Claim, Lease: lease, Started: true,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// want wants the query to list these keys, in this order.
func (l listings) want(t *testing.T, db *sql.DB, query string, messages ...string) {
	t.Helper()
	var want []string
	for _, id := range messages {
		want = append(want, keyOf(id).String())
	}
	if got := keysOf(t, db, query); !slices.Equal(got, want) {
		t.Errorf("%s\nlists %q, want %q", strings.TrimSpace(query), got, want)
	}
}

func keyOf(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id}
}

// keysOf are the first column of a query.
func keysOf(t *testing.T, db *sql.DB, query string) (keys []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s\n%v", query, err)
	}
	defer rows.Close()
	columns, _ := rows.Columns()
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(sql.NullString)
		}
		if err := rows.Scan(values...); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, values[0].(*sql.NullString).String)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return keys
}
