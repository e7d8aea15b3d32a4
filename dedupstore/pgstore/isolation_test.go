package pgstore

import (
	"bytes"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
)

// TestClaim_SeesHeartbeatsWhateverTheIsolation has a batch that waits with its first key for somebody who gives up.
// Meanwhile the holder of the second key, whose lease has just ended, extends it. So what the batch saw at its
// beginning is old.
func TestClaim_SeesHeartbeatsWhateverTheIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(level)
			})
			s := newStore(t, pool, Config{})
			first, second := brief("1"), brief("2")
			if bytes.Compare(idOf(first.Key.String()), idOf(second.Key.String())) > 0 {
				first, second = second, first
			}
			taken := claim(t, s, second, dedupstore.AcquiredRun).Claim
			lasts(2 * second.Lease)
			tx := begin(t, pool, pgx.ReadCommitted)
			intrude(t, tx, first.Key)
			first.Owner, second.Owner = rand.Text(), rand.Text()
			s.known.Store(true) // it looks at the second before it makes the first
			var results []dedupstore.ClaimResult
			var group sync.WaitGroup
			var gaveUp atomic.Bool // on a slow machine
			group.Go(func() {
				results = s.Claim(t.Context(), []dedupstore.Request{first, second})
				gaveUp.Store(true)
			})
			until(t, "the batch", func() bool { return waitsForALock(t, pool) || gaveUp.Load() })
			extended := beat(t.Context(), s, taken, time.Hour)
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			group.Wait()
			want := dedupstore.Busy
			// on a slow machine, on which it took over before
			if errors.Is(extended, dedupstore.ErrClaimLost) {
				want = dedupstore.AcquiredRun
			} else if extended != nil {
				t.Errorf("the holder cannot extend: %v", extended)
			}
			if r := results[1]; r.Err != nil || r.Answer.Status != want {
				t.Errorf("after a heartbeat that was answered %v, a claim of its key was answered %q, %v, want %s",
					extended, r.Answer.Status, r.Err, want)
			}
		})
	}
}
