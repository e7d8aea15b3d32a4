package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Clean deletes expired records in one transaction, at most limit of them (1 to 100,000), and returns how many. It also
// deletes at most as many heartbeats of runs that are over. It is quick for a limit of some thousands, and claims do
// not wait for it. While another cleaning of this store runs, it does nothing and returns 0.
func (s *Store) Clean(ctx context.Context, limit int) (removed int, err error) {
	if limit < 1 || limit > mostCleaned {
		return 0, &dedupstore.InvalidError{Package: "pgstore", Field: "limit",
			Problem: fmt.Sprintf("is %d, want 1 to %d", limit, mostCleaned)}
	}
	removed, _, err = s.clean(ctx, limit)
	return removed, err
}

// pickSQL locks records that are to be looked at, and notes their places for the next statement; or ” if another
// cleaning is under way.
const pickSQL = `
SELECT set_config('oncemill.picked', CASE WHEN a.alone THEN ARRAY(
	SELECT x.ctid FROM {records} x WHERE x.clean_at <= statement_timestamp()
	ORDER BY x.clean_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED)::text ELSE '' END, true)
FROM (SELECT pg_try_advisory_xact_lock('{records}'::regclass::oid::integer, 1869506413) AS alone) AS a`

const picked = `nullif(current_setting('oncemill.picked'), '')::tid[]`

// livesUntil is when a record expires.
const livesUntil = `greatest(x.expires_at, (SELECT b.expires_at FROM {beats} b
	WHERE b.id = x.id AND b.fence = x.fence AND b.state = x.state))`

// clean returns how many records it deleted, and how many heartbeats. Its commit does not wait for the disk: what comes
// back is deleted again.
func (s *Store) clean(ctx context.Context, limit int) (records, beats int, err error) {
	err = s.inTx(ctx, func(tx transaction) error {
		var b pgx.Batch
		b.Queue(beginOwn)
		b.Queue(useIndexes + beHasty)
		b.Queue(s.sql.pick, limit)
		b.Queue(s.sql.clean, limit).QueryRow(func(row pgx.Row) error { return row.Scan(&records, &beats) })
		b.Queue("commit")
		return tx.send(ctx, &b)
	})
	if err != nil {
		return 0, 0, s.failed("clean", err)
	}
	return records, beats, nil
}

// RunCleaning deletes expired records, and heartbeats of runs that are over. It starts at once, looks again every
// minute, and returns nil when ctx ends. It works in batches and rests after each for three times as long as the batch
// took. So it delays the commits of others no longer than a small batch does, also on a slow server. It logs errors and
// goes on. It may run in every process: one at a time cleans.
func (s *Store) RunCleaning(ctx context.Context) error {
	return sqlstore.RunCleaning(ctx, s.cfg.Logger, s.cfg.Table, s.rest, s.cleanAll)
}

// cleanAll deletes until a batch is less than half full. Less than full says nothing: some of what was looked at may
// have to stay, and is not looked at again soon.
func (s *Store) cleanAll(ctx context.Context) error {
	for {
		start := time.Now()
		records, beats, err := s.clean(ctx, cleanBatch)
		rest := min(3*time.Since(start), longestRest)
		if err != nil || 2*max(records, beats) < cleanBatch || !pace.Sleep(ctx, rest) {
			return err
		}
	}
}

const (
	// cleanBatch is how many records take some milliseconds.
	cleanBatch = 200

	// mostCleaned is what a caller of Clean may ask for.
	mostCleaned = 100_000

	// longestRest lets even a slow server delete some hundred records a second.
	longestRest = 250 * time.Millisecond
)
