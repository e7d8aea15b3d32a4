package pgstore

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "12") // unless -parallel says otherwise: most tests wait for the end of a lease
	goleak.VerifyTestMain(m)
}

// proof runs the tests with the counts that are promised.
var proof = os.Getenv("ONCEMILL_PROOF") == "1"

func full[T any](inProof, reduced T) T {
	if proof {
		return inProof
	}
	return reduced
}

var schemas atomic.Int64

// newPool returns a pool of connections to a new schema, with a table of effects.
func newPool(t testing.TB, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	schema := fmt.Sprintf("test_%d_%d", os.Getpid(), schemas.Add(1))
	pool := poolIn(t, schema, configure...)
	mustExec(t, pool, `CREATE SCHEMA `+schema)
	t.Cleanup(func() { mustExec(t, pool, `DROP SCHEMA `+schema+` CASCADE`) })
	mustExec(t, pool, `CREATE TABLE effects (id text NOT NULL, run bigint NOT NULL)`)
	return pool
}

// poolIn returns a pool of connections to a schema.
func poolIn(t testing.TB, schema string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return postgrestest.Shared(t).Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 16
		c.ConnConfig.RuntimeParams["search_path"] = schema
		for _, f := range configure {
			f(c)
		}
	})
}

func newStore(t testing.TB, pool *pgxpool.Pool, cfg Config) *Store {
	t.Helper()
	s := unmigrated(t, pool, cfg)
	if err := s.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func unmigrated(t testing.TB, pool *pgxpool.Pool, cfg Config) *Store {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustExec(t testing.TB, pool *pgxpool.Pool, query string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}

const long = time.Hour

func request(id string) dedupstore.Request {
	return dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id},
		Owner: rand.Text(), Lease: long, Retention: long, MaxAttempts: 5,
	}
}

func brief(id string) dedupstore.Request {
	r := request(id)
	r.Lease = 50 * time.Millisecond
	return r
}

func ask(t testing.TB, s dedupstore.Store, r dedupstore.Request) dedupstore.Answer {
	t.Helper()
	a, err := dedupstore.ClaimOne(context.Background(), s, r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// claim claims and wants the answer.
func claim(t testing.TB, s dedupstore.Store, r dedupstore.Request, want dedupstore.Status) dedupstore.Answer {
	t.Helper()
	a := ask(t, s, r)
	if a.Status != want {
		t.Fatalf("a claim was answered %s (found %s, wait %v), want %s", a.Status, a.Found, a.Wait, want)
	}
	return a
}

// run claims a run.
func runOf(t testing.TB, s dedupstore.Store, id string) dedupstore.Claim {
	t.Helper()
	return claim(t, s, request(id), dedupstore.AcquiredRun).Claim
}

// beat is a heartbeat of a handler.
func beat(ctx context.Context, s dedupstore.Store, c dedupstore.Claim, lease time.Duration) error {
	return dedupstore.ExtendOne(ctx, s, dedupstore.Extension{Claim: c, Lease: lease, Started: true})
}

// success is a settlement.
var success = dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("paid")},
	Retention: long}

// effect is the work of a handler: one row for each run.
func effect(ctx context.Context, c dedupstore.Claim) error {
	_, err := Tx(ctx).Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, c.Key.ID, int64(c.Fence))
	return err
}

// paying is work with one effect that succeeds.
func paying(c dedupstore.Claim) func(context.Context) (dedupstore.Settlement, error) {
	return func(ctx context.Context) (dedupstore.Settlement, error) { return success, effect(ctx, c) }
}

// effects is how many effects a key has.
func effects(t testing.TB, pool *pgxpool.Pool, id string) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM effects WHERE id = $1`,
		id).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func wantEffects(t testing.TB, pool *pgxpool.Pool, id string, want int) {
	t.Helper()
	if n := effects(t, pool, id); n != want {
		t.Errorf("%s has %d effects, want %d", id, n, want)
	}
}

// until polls for a condition.
func until(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}

// lasts waits for something that takes its time, such as a lease.
func lasts(d time.Duration) { <-time.After(d) }

func begin(t testing.TB, pool *pgxpool.Pool, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(context.Background(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}
