package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// openDB opens a database in memory.
func openDB(ctx context.Context, statements ...string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // each connection would have a database of its own
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// An order's state is set by the newest run of its message alone, and the customer is charged once however many runs
// there are.
func Example_fence() {
	ctx := context.Background()
	db, err := openDB(ctx,
		`CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT, fence BIGINT)`,
		`INSERT INTO orders (id) VALUES ('order-7')`,
		`CREATE TABLE charges (id TEXT PRIMARY KEY, amount INT)`)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ship := func(ctx context.Context) (dedupstore.Outcome, error) {
		run := oncemill.FromContext(ctx)
		// One effect for all runs: a key that they share.
		_, err := db.ExecContext(ctx, `INSERT INTO charges (id, amount) VALUES ($1, 1250) ON CONFLICT (id) DO NOTHING`, run.ID("charge"))
		if err != nil {
			return dedupstore.Outcome{}, err
		}
		// No effect of a run that is out of date: a fence.
		res, err := db.ExecContext(ctx,
			`UPDATE orders SET state = $1, fence = $2 WHERE id = $3 AND `+run.FenceWhere("fence", "$2"),
			fmt.Sprint("shipped in attempt ", run.Attempt), run.FenceArg(), run.Key.ID)
		if err != nil {
			return dedupstore.Outcome{}, err
		}
		rows, err := res.RowsAffected()
		if err != nil {
			return dedupstore.Outcome{}, err
		}
		if err := run.FenceApplied(rows); err != nil {
			return dedupstore.Outcome{}, err
		}
		if run.Attempt == 1 {
			err = oncemill.RetryAfter(0, errors.New("the process dies here"))
		}
		return dedupstore.Outcome{}, err
	}

	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "acme", Group: "shop", Handler: "ship", ID: "order-7"}}
	for range 2 {
		_, err := guard.Run(ctx, call, ship)
		fmt.Println(err)
	}
	var state string
	var charges int
	if err := db.QueryRowContext(ctx, `SELECT state, (SELECT count(*) FROM charges) FROM orders`).Scan(&state, &charges); err != nil {
		log.Fatal(err)
	}
	fmt.Println(state+",", charges, "charge")
	// Output:
	// oncemill: attempt 1 failed, retry in 0s: the process dies here
	// <nil>
	// shipped in attempt 2, 1 charge
}

// A ledger is a table of one row with a fence.
type ledger struct {
	t  testing.TB
	db *sql.DB
}

func newLedger(t testing.TB) *ledger {
	t.Helper()
	db, err := openDB(t.Context(), `CREATE TABLE t (id INT PRIMARY KEY, v INT, fence BIGINT)`, `INSERT INTO t (id, v) VALUES (1, 0)`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &ledger{t, db}
}

func (l *ledger) add(run oncemill.Run, id int) error {
	l.t.Helper()
	res, err := l.db.ExecContext(l.t.Context(), `UPDATE t SET v = v + 1, fence = $1 WHERE id = $2 AND `+run.FenceWhere("fence", "$1"), run.FenceArg(), id)
	if err != nil {
		l.t.Fatal(err)
	}
	rows, err := res.RowsAffected()
	if err != nil {
		l.t.Fatal(err)
	}
	return run.FenceApplied(rows)
}

func (l *ledger) want(v int, fence int64) {
	l.t.Helper()
	var gotV int
	var gotFence sql.NullInt64
	if err := l.db.QueryRowContext(l.t.Context(), `SELECT v, fence FROM t`).Scan(&gotV, &gotFence); err != nil {
		l.t.Fatal(err)
	}
	if gotV != v || gotFence.Int64 != fence {
		l.t.Errorf("the row has value %d and fence %d, want %d and %d", gotV, gotFence.Int64, v, fence)
	}
}

func TestFence_KeepsStaleWritersOutAndARepeatedStatementToo(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	now := uint64(time.Now().UnixMicro())
	older, newer := oncemill.Run{Fence: now, Attempt: 1}, oncemill.Run{Fence: now + 1, Attempt: 2}
	if err := l.add(older, 1); err != nil {
		t.Errorf("the first write of a row that nobody has written: %v", err)
	}
	if err := l.add(older, 1); !errors.Is(err, oncemill.ErrFenced) {
		t.Errorf("the statement sent again: %v", err)
	}
	l.want(1, older.FenceArg())
	if err := l.add(newer, 1); err != nil {
		t.Errorf("a newer run: %v", err)
	}
	if err := l.add(older, 1); !errors.Is(err, oncemill.ErrFenced) {
		t.Error(err)
	}
	if err := l.add(newer, 7); !errors.Is(err, oncemill.ErrFenced) { // no such row
		t.Error(err)
	}
	l.want(2, newer.FenceArg())
}

func TestFence_UnguardedRunWritesNothingThatARunHasWritten(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	run := oncemill.Run{Fence: 5}
	if err := l.add(run, 1); err != nil {
		t.Error(err)
	}
	err := l.add(oncemill.Run{}, 1)
	if !errors.Is(err, oncemill.ErrFenced) || !strings.Contains(err.Error(), "not guarded") {
		t.Errorf("%v, want it to say that the run is not guarded", err)
	}
	l.want(1, 5)
}
