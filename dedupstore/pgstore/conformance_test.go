package pgstore

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

func TestStore_Conforms(t *testing.T) {
	t.Parallel()
	conforms(t, func(s *Store) dedupstore.Store { return s })
}

// TestStore_ConformsAsAnInboxThatNobodyTakesATransactionOf is the leased contract of the store that has InTx, too.
func TestStore_ConformsAsAnInboxThatNobodyTakesATransactionOf(t *testing.T) {
	t.Parallel()
	if !proof {
		t.Skip("set ONCEMILL_PROOF=1")
	}
	conforms(t, func(s *Store) dedupstore.Store { return s.Inbox() })
}

// TestStore_ConformsWhereTheDatabaseIsSerializable shows that the store's own statements survive another isolation.
func TestStore_ConformsWhereTheDatabaseIsSerializable(t *testing.T) {
	t.Parallel()
	if !proof {
		t.Skip("set ONCEMILL_PROOF=1")
	}
	conforms(t, func(s *Store) dedupstore.Store { return s }, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(pgx.Serializable)
	})
}

func TestStore_ConformsBesideWhatIsStuck(t *testing.T) {
	t.Parallel()
	storetest.RunStuck(t, func(t *testing.T) storetest.Subject {
		direct := newPool(t)
		newStore(t, direct, Config{})
		pool, p := behind(t, direct)
		return storetest.Subject{
			Store: unmigrated(t, pool, Config{}),
			Lock:  func(k dedupstore.Key) func() { return lock(t, direct, k) },
			Stall: func(arrives bool) func() {
				var met atomic.Bool
				p.inject(func(_ int, request string) fault {
					if !strings.Contains(request, "settled = ") || met.Swap(true) {
						return faithful
					}
					if arrives {
						return lateAnswer
					}
					return lateRequest
				})
				return p.release
			},
		}
	})
}

// lock changes the record of a key, or makes it, in a transaction that stays open until release.
func lock(t *testing.T, pool *pgxpool.Pool, k dedupstore.Key) (release func()) {
	t.Helper()
	tx, err := pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), `
INSERT INTO oncemill_dedup (id, key, state, owner, fence, attempts, returned, first_at, lease_until, expires_at, clean_at,
	print, trace)
VALUES ($1, $2, 'running', 'somebody-who-stands-still', 1, 1, 0, now(), now(), now(), now(), '', '')
ON CONFLICT (id) DO UPDATE SET fence = oncemill_dedup.fence`, idOf(k.String()), k.String())
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.Background()) }
}

func TestStore_ConformsBehindPgBouncer(t *testing.T) {
	t.Parallel()
	conformsOn(t, postgrestest.PgBouncerPool(t, postgrestest.Shared(t).NewDatabase(t).DSN()),
		func(s *Store) dedupstore.Store { return s }, "claim", "batch", "finish", "extend", "list", "count")
}

func conforms(t *testing.T, form func(*Store) dedupstore.Store, configure ...func(*pgxpool.Config)) {
	t.Helper()
	conformsOn(t, newPool(t, configure...), form)
}

// conformsOn runs the suite, or some kinds of its cases.
func conformsOn(t *testing.T, pool *pgxpool.Pool, form func(*Store) dedupstore.Store, kinds ...string) {
	t.Helper()
	s := newStore(t, pool, Config{})
	t.Run("suite", func(t *testing.T) { // which ends when its cases have, before the pool is closed
		storetest.Run(t, func(t *testing.T) storetest.Subject {
			if kinds != nil {
				claimtest.Only(t, kinds...)
			}
			return storetest.Subject{Store: form(s), TTL: ttlOf(t, pool)}
		})
	})
}

func ttlOf(t *testing.T, pool *pgxpool.Pool) func(dedupstore.Key) (time.Duration, bool) {
	return func(k dedupstore.Key) (time.Duration, bool) {
		var micros int64
		err := pool.QueryRow(t.Context(), `
SELECT (extract(epoch FROM coalesce(b.expires_at, r.expires_at) - clock_timestamp()) * 1000000)::bigint
FROM oncemill_dedup r LEFT JOIN oncemill_dedup_beats b ON b.id = r.id AND b.fence = r.fence AND b.state = r.state
WHERE r.id = $1 AND r.clean_at >= r.expires_at`, idOf(k.String())).Scan(&micros)
		if err != nil {
			t.Error(err)
		}
		return time.Duration(micros) * time.Microsecond, err == nil
	}
}

func BenchmarkStore(b *testing.B) {
	s := newStore(b, newPool(b), Config{})
	storetest.Benchmarks(b, func(*testing.B) dedupstore.Store { return s })
}
