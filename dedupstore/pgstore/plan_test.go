package pgstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// TestStore_PlansOfASmallTableDoNotReadALargeOne does everything on tables that a vacuum has found empty, where a
// sequential scan seems cheapest. The plans stay in their sessions when the tables grow.
func TestStore_PlansOfASmallTableDoNotReadALargeOne(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	schema := direct.Config().ConnConfig.RuntimeParams["search_path"]
	var reads, finds int
	look := func(done func() bool) { // sessions report what they did when they end, at the latest
		until(t, "the statistics", func() bool {
			if err := direct.QueryRow(t.Context(), `
SELECT coalesce(sum(seq_scan), 0), coalesce(sum(idx_scan), 0) FROM pg_stat_user_tables
WHERE schemaname = $1 AND relname LIKE 'oncemill_dedup%' AND relname <> 'oncemill_dedup_settings'`,
				schema).Scan(&reads, &finds); err != nil {
				t.Fatal(err)
			}
			return done()
		})
	}
	of := func(conns int32) *pgxpool.Pool {
		cfg := direct.Config()
		cfg.MaxConns = conns
		pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return pool
	}
	pool := of(2)
	newStore(t, pool, Config{})
	mustExec(t, pool, `VACUUM oncemill_dedup, oncemill_dedup_beats, oncemill_dedup_duplicates`)
	pool.Close()
	look(func() bool { return reads >= 6 }) // the making of six indexes
	before := reads

	pool = of(2)
	s := unmigrated(t, pool, Config{})
	for i := range 10 {
		useAll(t, s, pool, fmt.Sprint(i))
	}
	pool.Close()
	look(func() bool { return finds >= 100 })
	if reads > before {
		t.Errorf("%d statements read a whole table, %d used an index", reads-before, finds)
	}
}

// TestStore_ReadsNoMoreOfALargeTable counts the rows and the index entries that are read while everything is done once.
func TestStore_ReadsNoMoreOfALargeTable(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	config := direct.Config()
	schema := config.ConnConfig.RuntimeParams["search_path"]
	config.ConnConfig.RuntimeParams["application_name"] = schema
	// A session reports what it has read when it ends.
	with := func(do func(*pgxpool.Pool)) {
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		do(pool)
		pool.Close()
		until(t, "the end of the sessions", func() (gone bool) {
			err := direct.QueryRow(t.Context(), `SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = $1`,
				schema).Scan(&gone)
			if err != nil {
				t.Fatal(err)
			}
			return gone
		})
	}
	const rows = 40_000
	with(func(pool *pgxpool.Pool) {
		s := newStore(t, pool, Config{})
		if err := dedupstore.SettleOne(t.Context(), s, runOf(t, s, "seed"), success); err != nil {
			t.Fatal(err)
		}
		mustExec(t, pool, `
INSERT INTO oncemill_dedup SELECT c.* FROM oncemill_dedup x CROSS JOIN generate_series(1, $1) AS i
CROSS JOIN LATERAL (SELECT x.key || '-' || i AS key) AS k
CROSS JOIN LATERAL jsonb_populate_record(x, jsonb_build_object('key', k.key,
	'id', '\x' || encode(substring(sha256(k.key::bytea) FOR 16), 'hex'))) AS c`, rows)
		mustExec(t, pool, `INSERT INTO oncemill_dedup_duplicates SELECT id, 1, first_at, first_at FROM oncemill_dedup`)
		mustExec(t, pool, `VACUUM ANALYZE oncemill_dedup, oncemill_dedup_duplicates`)
	})
	read := func() (n int) {
		if err := direct.QueryRow(t.Context(), `
SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = $1 AND relname <> 'effects')
	+ (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = $1)`, schema).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := read()
	with(func(pool *pgxpool.Pool) { useAll(t, unmigrated(t, pool, Config{}), pool, "large") })
	if n := read() - before; n < pageSize || n > rows/2 {
		t.Errorf("%d rows and index entries were read of %d", n, rows)
	}
}

// useAll calls all methods of the store, and of its inbox.
func useAll(t *testing.T, s *Store, pool *pgxpool.Pool, n string) {
	leased := runOf(t, s, "leased-"+n)
	if err := claimtest.NoteScope(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var many []dedupstore.Request
		for j := range 3 {
			many = append(many, request(fmt.Sprint("many-", n, "-", j)))
		}
		for _, r := range s.Claim(t.Context(), many) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	if err := beat(t.Context(), s, leased, long); err != nil {
		t.Fatal(err)
	}
	if err := dedupstore.SettleOne(t.Context(), s, leased, success); err != nil {
		t.Fatal(err)
	}
	c := runOf(t, s.Inbox(), "inbox-"+n)
	for range 2 { // the second looks, and finds it done
		if err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, paying(c)); err != nil {
			t.Fatal(err)
		}
	}
	joined := runOf(t, s, "joined-"+n)
	tx := begin(t, pool, "")
	if err := s.Join(txctx.With(t.Context(), &joined), tx); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[sqlstore.Verdict]dedupstore.Claim{
		sqlstore.Settled: c, sqlstore.Open: runOf(t, s, "unsettled-"+n),
	} {
		m := []*sqlstore.Member{{ID: sqlstore.IDOf(c.Key.String()), Claim: c}}
		found, now, err := (&calling{inbox: s.inbox, token: "lost"}).Load(t.Context(), m, true)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := sqlstore.Judge(m, found, now); err != nil || v != want {
			t.Fatal(v, err)
		}
	}
	d := []dedupstore.Duplicates{{Key: c.Key, Count: 1, Last: time.Now()}}
	if err := s.NoteDuplicates(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if seen := recordOf(t, s, c.Key.ID); seen.Duplicates != 1 {
		t.Fatalf("the record looks like %+v", seen)
	}
	if page, err := s.List(t.Context(), dedupstore.Filter{}, ""); err != nil || len(page.Records) == 0 {
		t.Fatalf("the list is %+v, %v", page, err)
	}
	if c, err := s.Count(t.Context(), dedupstore.Filter{}, ""); err != nil || len(c.Tallies) == 0 {
		t.Fatalf("the count is %+v, %v", c, err)
	}
	if _, err := s.Count(t.Context(), dedupstore.Filter{}, "-1"); err != nil { // duplicates
		t.Fatal(err)
	}
	first := request("first-" + n)
	for range 2 { // the second finds it done
		_, err := firstOf(t, s.Inbox(), first, func(ctx context.Context, c dedupstore.Claim) error { return effect(ctx, c) })
		if err != nil {
			t.Fatal(err)
		}
	}
	other := request("firsts-" + n)
	_, err := s.Inbox().InTx(t.Context(), []dedupstore.TxRun{{First: &first}, {First: &other}},
		func(_ context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			return successes(claims), nil
		})
	if err != nil {
		t.Fatal(err)
	}
	failed := runOf(t, s, "failed-"+n)
	if err := dedupstore.SettleOne(t.Context(), s, failed, dedupstore.Finish{
		Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Retention: long}); err != nil {
		t.Fatal(err)
	}
	if err := s.Change(t.Context(), recordOf(t, s, failed.Key.ID), dedupstore.Rerun{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Change(t.Context(), recordOf(t, s, c.Key.ID), dedupstore.Forget{}); err != nil {
		t.Fatal(err)
	}
	if seen := recordOf(t, s, c.Key.ID); seen.State != dedupstore.Absent {
		t.Fatalf("a forgotten record looks like %+v", seen)
	}
	if _, err := s.Clean(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
}
