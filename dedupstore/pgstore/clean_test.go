package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

func recordsIn(t testing.TB, pool *pgxpool.Pool) (records, beats int) {
	t.Helper()
	err := pool.QueryRow(context.Background(),
		`SELECT (SELECT count(*) FROM oncemill_dedup), (SELECT count(*) FROM oncemill_dedup_beats)`).Scan(&records,
		&beats)
	if err != nil {
		t.Fatal(err)
	}
	return records, beats
}

// due makes all records be looked at by the next cleaning, expired or not.
func due(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	mustExec(t, pool, `UPDATE oncemill_dedup SET clean_at = clock_timestamp()`)
	mustExec(t, pool, `
UPDATE oncemill_dedup_beats SET lease_until = lease_until - interval '2 minutes'
WHERE lease_until < clock_timestamp()`)
}

func TestClean_DeletesWhatHasExpiredAndNothingElse(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	passing := func(id string) dedupstore.Request {
		r := request(id)
		r.Lease, r.Retention = time.Second, time.Millisecond
		return r
	}
	claim(t, s, passing("expired"), dedupstore.AcquiredRun)
	beating := claim(t, s, passing("expired-with-heartbeat"), dedupstore.AcquiredRun).Claim
	if err := beat(t.Context(), s, beating, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	extended := claim(t, s, passing("extended"), dedupstore.AcquiredRun).Claim
	if err := beat(t.Context(), s, extended, long); err != nil {
		t.Fatal(err)
	}
	claim(t, s, request("live"), dedupstore.AcquiredRun)
	done := runOf(t, s, "done")
	if err := beat(t.Context(), s, done, time.Millisecond); err != nil { // its heartbeat means nothing any more
		t.Fatal(err)
	}
	if err := dedupstore.SettleOne(t.Context(), s, done, success); err != nil {
		t.Fatal(err)
	}
	lasts(1100 * time.Millisecond)
	due(t, pool)
	removed, err := s.Clean(t.Context(), 100)
	if err != nil || removed != 2 {
		t.Errorf("Clean removed %d, %v, want 2", removed, err)
	}
	if records, beats := recordsIn(t, pool); records != 3 || beats > 2 {
		t.Errorf("%d records and %d heartbeats are left, want 3 and 2 at most", records, beats)
	}
	// The heartbeat of a record is deleted after it, by the same cleaning or the next.
	if _, err := s.Clean(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	if records, beats := recordsIn(t, pool); records != 3 || beats != 1 {
		t.Errorf("%d records and %d heartbeats are left, want 3 and 1", records, beats)
	}
	claim(t, s, request("extended"), dedupstore.Busy)
	claim(t, s, request("done"), dedupstore.Done)
	if err := dedupstore.SettleOne(t.Context(), s, extended, success); err != nil {
		t.Error(err)
	}
}

func TestClean_IsBounded(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	s.rest = time.Millisecond
	fill(t, pool, 950, "-1 hour")
	for _, limit := range []int{0, -1, mostCleaned + 1} {
		if _, err := s.Clean(t.Context(), limit); !isInvalid(err, "limit") {
			t.Errorf("Clean of %d returned %v", limit, err)
		}
	}
	if removed, err := s.Clean(t.Context(), 7); removed != 7 || err != nil {
		t.Errorf("Clean of 7 removed %d, %v", removed, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.RunCleaning(ctx) }()
	until(t, "the end of all records", func() bool { records, _ := recordsIn(t, pool); return records == 0 })
	fill(t, pool, 5, "-1 hour")
	until(t, "the next cleaning", func() bool { records, _ := recordsIn(t, pool); return records == 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("RunCleaning returned %v, want nil", err)
	}
}

// cleaned runs a cleaning that looks only once until something is so.
func cleaned(t *testing.T, s *Store, what string, met func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.RunCleaning(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("RunCleaning returned %v, want nil", err)
		}
	}()
	until(t, what, met)
}

// A run under a policy that parks begins with a heartbeat. For as long as its window lasts no record expires, and yet
// the heartbeats have to go.
func TestRunCleaning_DeletesAllHeartbeatsThatMeanNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	fill(t, pool, 3000, "1 hour")
	mustExec(t, pool, `
INSERT INTO oncemill_dedup_beats (id, fence, state, lease_until, expires_at)
SELECT id, fence, 'running', now() - interval '1 hour', now() + interval '1 hour' FROM oncemill_dedup`)
	running := runOf(t, s, "running")
	if err := beat(t.Context(), s, running, long); err != nil {
		t.Fatal(err)
	}
	mustExec(t, pool, `UPDATE oncemill_dedup_beats SET lease_until = now() - interval '1 day' WHERE id = $1`,
		idOf(running.Key.String()))
	cleaned(t, s, "the end of the heartbeats of finished runs",
		func() bool { _, beats := recordsIn(t, pool); return beats == 1 })
	if records, beats := recordsIn(t, pool); records != 3001 || beats != 1 {
		t.Errorf("%d records and %d heartbeats are left, want 3001, and the one of a run that is not finished", records,
			beats)
	}
}

// Some records live longer than they were made for, by heartbeats. Others must not wait for the next look because of
// them.
func TestRunCleaning_GoesOnWhereSomeRecordsMustStay(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	fill(t, pool, 3000, "-1 hour")
	mustExec(t, pool, `
INSERT INTO oncemill_dedup_beats (id, fence, state, lease_until, expires_at)
SELECT id, fence, state, now(), now() + interval '1 hour' FROM oncemill_dedup WHERE fence % 50 = 1`)
	cleaned(t, s, "the end of what has expired", func() bool { records, _ := recordsIn(t, pool); return records == 60 })
	if records, beats := recordsIn(t, pool); records != 60 || beats != 60 {
		t.Errorf("%d records and %d heartbeats are left, want 60 of each", records, beats)
	}
}

func isInvalid(err error, field string) bool {
	invalid, ok := errors.AsType[*dedupstore.InvalidError](err)
	return ok && invalid.Field == field
}

// TestClean_ClaimsDoNotWaitForIt looks at a cleaning that takes long: its transaction is held open.
func TestClean_ClaimsDoNotWaitForIt(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	fill(t, pool, 2000, "-1 hour")
	tx := begin(t, pool, "")
	_, err := tx.Exec(t.Context(), s.sql.pick, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var removed, beats int
	err = tx.QueryRow(t.Context(), s.sql.clean, 1000).Scan(&removed, &beats)
	if err != nil || removed != 1000 {
		t.Fatalf("%d records were deleted, %v", removed, err)
	}
	answers := map[dedupstore.Status][]time.Duration{}
	for i := range 40 {
		id := fmt.Sprintf("old-%d", 1+i*50) // half of them are being deleted
		if i%2 == 0 {
			id = fmt.Sprintf("new-%d", i)
		}
		start := time.Now()
		a := ask(t, s, request(id))
		answers[a.Status] = append(answers[a.Status], time.Since(start))
	}
	if len(answers[dedupstore.Busy]) == 0 || len(answers[dedupstore.AcquiredRun]) < 20 {
		t.Errorf("claims were answered %v, want busy for what is being deleted, and runs for others", answers)
	}
	for status, took := range answers {
		if fastest := slices.Min(took); fastest > time.Second { // some 30 ms; who waits for the cleaning waits for ever
			t.Errorf("%s was answered after %v at best, want a second at most", status, fastest)
		}
	}
	if other, err := s.Clean(t.Context(), 10); other != 0 || err != nil {
		t.Errorf("a second cleaning beside removed %d, %v, want 0", other, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	claim(t, s, request("old-51"), dedupstore.AcquiredRun)
}

// fill makes finished records that expired, or will expire, some time from now.
func fill(t testing.TB, pool *pgxpool.Pool, n int, expiry string) {
	t.Helper()
	mustExec(t, pool, `
INSERT INTO oncemill_dedup (id, key, state, owner, fence, attempts, returned, first_at, expires_at, clean_at,
	kind, decided, print, trace, settled)
SELECT substring(sha256(('acme:billing:charge:old-' || i)::bytea) FROM 1 FOR 16), 'acme:billing:charge:old-' || i,
	'done', 'an-owner-of-24-characters', i, 1, 0, now() - interval '1 day', now() + $2::interval, now() + $2::interval,
	'succeeded', i, '', '', ARRAY['an-owner-of-24-characters']
FROM generate_series(1, $1::integer) AS i ON CONFLICT DO NOTHING`, n, expiry)
}

// TestClean_OldRecordsDoNotSlowClaims compares claims on an empty table with claims beside old records, live and
// expired, and looks at the longest claim while they are cleaned.
func TestClean_OldRecordsDoNotSlowClaims(t *testing.T) {
	if !proof {
		t.Skip("measures time: only with ONCEMILL_PROOF=1")
	}
	const n = 1_000_000
	named := func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = beside }
	pool := postgrestest.Start(t, "fsync=on").Pool(t, named) // with commits as they are in earnest
	empty := newStore(t, pool, Config{Table: "empty"})
	s := newStore(t, pool, Config{})
	fill(t, pool, n, "-1 hour")
	mustExec(t, pool, `ANALYZE oncemill_dedup`)

	const rounds, claims = 20, 500
	var without, beside []time.Duration
	for range rounds { // in turns: the machine may have others to serve
		without = append(without, claimsTake(t, empty, claims))
		beside = append(beside, claimsTake(t, s, claims))
	}
	slower := float64(slices.Min(beside)) / float64(slices.Min(without))
	t.Logf("%d claims took %v on an empty table, %v beside %d old records: %.2f times", claims, slices.Min(without),
		slices.Min(beside), n, slower)
	if slower > 1.1 {
		t.Errorf("old records make claims take %.2f times as long, want 1.1 at most", slower)
	}

	// The leftover writes of filling are no cost of cleaning: records that expire were on disk long before.
	mustExec(t, pool, `CHECKPOINT`)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var looking sync.WaitGroup
	var locked time.Duration
	looking.Go(func() { locked = longestLockWait(ctx, pool) })
	left := func() (left bool) {
		const query = `SELECT EXISTS (SELECT FROM oncemill_dedup WHERE clean_at < now())`
		if err := pool.QueryRow(ctx, query).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left
	}
	number := 0
	claiming := func(what string, took []time.Duration, until func() bool) []time.Duration {
		for begun, i := time.Now(), 0; i%100 != 0 || !until() &&
			time.Since(begun) < 2*time.Second; i++ {
			number++
			began := time.Now()
			claim(t, s, request(fmt.Sprint(what, number)), dedupstore.AcquiredRun)
			took = append(took, time.Since(began))
		}
		return took
	}
	// In turns: what the disk and the others on the machine do to claims without any cleaning is seen in the same
	// minutes.
	var during, between []time.Duration
	cleaned := func() bool { return !left() }
	for turns := 0; turns < 2 || left(); turns++ {
		between = claiming("between", between, func() bool { return false })
		turn, stop := context.WithCancel(ctx)
		var cleaning sync.WaitGroup
		cleaning.Go(func() { _ = s.RunCleaning(turn) })
		during = claiming("during", during, cleaned)
		stop()
		cleaning.Wait()
	}
	cancel()
	looking.Wait()
	slices.Sort(during)
	slices.Sort(between)
	const limit = 50 * time.Millisecond
	if locked > limit {
		t.Errorf("a claim waited for a lock for %v, want %v at most", locked, limit)
	}
	at := func(took []time.Duration, q float64) time.Duration { return took[int(q*float64(len(took)-1))] }
	for what, took := range map[string][]time.Duration{"while records were cleaned": during,
		"between, without any cleaning": between} {
		slow, _ := slices.BinarySearch(took, 50*time.Millisecond)
		t.Logf("%s, %d claims took %v at the median, %v at the 99th percentile, %v at the 99.9th, %v at most; %d "+
			"took more than 50 ms",
			what, len(took), at(took, 0.5), at(took, 0.99), at(took, 0.999), at(took, 1), len(took)-slow)
	}
	t.Logf("the longest wait for a lock was %v", locked)
	if at(during, 0.99) > limit {
		t.Errorf("a claim took %v while records were cleaned, want %v at most", at(during, 0.99), limit)
	}
	// A claim that takes longer than any does without cleaning is cleaning's doing.
	if limit := max(limit, 2*at(between, 1)); at(during, 1) > limit {
		t.Errorf("a claim took %v while records were cleaned, want %v at most", at(during, 1), limit)
	}
}

// beside is the name by which the server knows the connections of claims beside a cleaning.
const beside = "beside-a-cleaning"

// longestLockWait looks at the server until ctx ends, and returns how long a claim was seen to wait for a lock.
func longestLockWait(ctx context.Context, pool *pgxpool.Pool) (longest time.Duration) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ; ctx.Err() == nil; <-tick.C {
		var micros int64
		if err := pool.QueryRow(ctx, `
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - query_start) * 1000000), 0)::bigint
FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`, beside).Scan(&micros); err == nil {
			longest = max(longest, sqlstore.Duration(micros))
		}
	}
	return longest
}

// claimsTake measures claims one after the other.
func claimsTake(t *testing.T, s *Store, n int) time.Duration {
	t.Helper()
	prefix := request("").Owner
	start := time.Now()
	for i := range n {
		claim(t, s, request(fmt.Sprint(prefix, i)), dedupstore.AcquiredRun)
	}
	return time.Since(start)
}
