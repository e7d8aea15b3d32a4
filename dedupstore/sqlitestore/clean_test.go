package sqlitestore

import (
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

func itoa(n int) string { return strconv.Itoa(n) }

func settlesWith(s dedupstore.Settlement) func(context.Context) (dedupstore.Settlement, error) {
	return func(context.Context) (dedupstore.Settlement, error) { return s, nil }
}

// fill writes finished records that have expired, behind the store's back.
func fill(t testing.TB, s *Store, n int) {
	t.Helper()
	conn, err := s.db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, query := range []string{
		`PRAGMA cache_size = -400000`,
		s.in(`
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
		INSERT INTO "{table}" (key, state, owner, fence, attempts, returned, started, lease_until, due_at, first_at, expires_at,
			scheme, sum, settled, trace, decided, kind, exhausted, truncated, reason, result, stubs, contents)
		SELECT 'acme:billing:charge:' || lower(hex(randomblob(16))), 'done', 'an-owner-token-of-old', ?2, 1, 0, 0, 0, 0, ?2, ?2 + i,
			'sha256', 'a-sum-of-forty-three-characters-in-base64url', 'an-owner-token-of-old', '', ?2, 'succeeded', 0, 0, x'', x'7b7d', NULL, NULL FROM n`),
		`PRAGMA cache_size = -2000`,
		`PRAGMA wal_checkpoint(TRUNCATE)`,
	} {
		expired := clock().UnixMicro() - sqlstore.Micros(time.Hour)
		if _, err := conn.ExecContext(context.Background(), query, n, expired); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClean_RemovesWhatHasExpiredAndNothingElse(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	fill(t, s, 1000)
	claim(t, s, request("live"), dedupstore.AcquiredRun)
	for _, want := range []int{700, 300, 0} {
		if n, err := s.Clean(t.Context(), 700); err != nil || n != want {
			t.Errorf("removed %d, %v, want %d", n, err, want)
		}
	}
	if n := count(t, db, `SELECT count(*) FROM oncemill_dedup`); n != 1 {
		t.Errorf("%d records are left, want one", n)
	}
	claim(t, s, request("live"), dedupstore.Busy)
}

func TestRunCleaning_CleansUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	s.rest = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	wait := background(func() error { return s.RunCleaning(ctx) })
	for range 2 {
		fill(t, s, 300)
		eventually(t, "the records are gone", func() bool { return count(t, db, `SELECT count(*) FROM oncemill_dedup`) == 0 })
	}
	cancel()
	if err := wait(); err != nil {
		t.Error(err)
	}
}

func TestClean_ReadsByTheIndex(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+s.in(cleanSQL), 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	byIndex := false
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		if detail == "SCAN oncemill_dedup" {
			t.Errorf("it reads the whole table: %s", detail)
		}
		byIndex = byIndex || detail == "SEARCH oncemill_dedup USING COVERING INDEX oncemill_dedup_expires (expires_at<?)"
	}
	if err := rows.Err(); err != nil || !byIndex {
		t.Errorf("the index is not used (%v)", err)
	}
}

// TestStore_OldRecordsSlowNoClaimAndTheirRemovalBlocksNone measures with synchronous=NORMAL: what a disk needs to sync is
// the same with and without old records, and would hide what is compared.
func TestStore_OldRecordsSlowNoClaimAndTheirRemovalBlocksNone(t *testing.T) {
	old, claims := 3000, 50
	if proof() {
		old, claims = 1_000_000, 1000
	}
	s, _ := newStore(t, "_synchronous", "NORMAL")
	before := claimTimes(t, s, claims, nil)
	fill(t, s, old)
	after := claimTimes(t, s, claims, nil)
	t.Logf("%d old records: a claim took %v before and %v after (median of %d)", old, median(before), median(after), claims)
	if proof() && float64(median(after)) > 1.1*float64(median(before)) {
		t.Errorf("a claim took %v beside %d old records and %v without", median(after), old, median(before))
	}
	removed := min(old, 100_000) // as slow a step as any
	done := make(chan struct{})
	wait := background(func() error {
		defer close(done)
		n, err := s.Clean(t.Context(), removed)
		if n != removed {
			t.Errorf("removed %d, want %d", n, removed)
		}
		return err
	})
	during := claimTimes(t, s, 1_000_000, done)
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(during)
	t.Logf("%d claims while %d records were removed: median %v, p99 %v, slowest %v", len(during), removed, median(during), during[len(during)*99/100], during[len(during)-1])
	if proof() && during[len(during)-1] > 50*time.Millisecond {
		t.Errorf("a claim waited %v for a removal", during[len(during)-1])
	}
}

// claimTimes claims new keys, n or until done, and returns how long each took.
func claimTimes(t *testing.T, s *Store, n int, done chan struct{}) (times []time.Duration) {
	t.Helper()
	for range n {
		select {
		case <-done:
			return append(times, 0)
		default:
		}
		r := request(strings.ToLower(rand.Text()))
		start := time.Now()
		claim(t, s, r, dedupstore.AcquiredRun)
		times = append(times, time.Since(start))
	}
	return times
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}
