package pgstore

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/txctx"
)

//go:embed testdata/version3.sql
var version3SQL string

func recordOf(t testing.TB, s dedupstore.Store, id string) dedupstore.Record {
	t.Helper()
	records, err := s.(dedupstore.Inspector).Look(t.Context(), []dedupstore.Key{request(id).Key})
	if err != nil {
		t.Fatal(err)
	}
	return records[0]
}

func TestMigrate_ContinuesRecordsOfVersion3(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	mustExec(t, pool, version3SQL)
	s := unmigrated(t, pool, Config{})
	if _, err := s.Check(t.Context()); schemaProblem(err, "call Migrate") != nil {
		t.Error(schemaProblem(err, "call Migrate"))
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	crashed := recordOf(t, s, "crashed")
	if !crashed.Started || crashed.Holder != "" || !crashed.Ended.IsZero() || crashed.Claimed.Sub(crashed.First).Abs() >
		time.Second {
		t.Errorf("a run that had crashed looks like %+v", crashed)
	}
	parks := request("crashed")
	parks.ParkExpired = true
	parked := claim(t, s, parks, dedupstore.AcquiredPublish)
	if parked.Outcome.Kind != dedupstore.Unknown {
		t.Errorf("the outcome of a started run that had crashed is %+v", parked.Outcome)
	}
	if err := errors.Join(
		dedupstore.SettleOne(t.Context(), s, parked.Claim, dedupstore.Published{Retention: long}),
		s.Change(t.Context(), recordOf(t, s, "crashed"), dedupstore.Rerun{})); err != nil {
		t.Error(err)
	}
	if seen := recordOf(t, s, "crashed"); seen.State != dedupstore.Retryable || seen.Reruns != 1 {
		t.Errorf("a record of version 3 that is to run again looks like %+v", seen)
	}

	if err := s.Change(t.Context(), recordOf(t, s, "publishing"), dedupstore.Forget{}); err == nil {
		t.Error("messages of version 3 that are to be published were forgotten")
	}
	taken := request("held")
	claim(t, s, taken, dedupstore.Busy)
	taken.Owner = "owner-of-version-3-held"
	c := claim(t, s, taken, dedupstore.AcquiredRun).Claim
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: c, Lease: long}); err != nil {
		t.Error(err)
	}
	if err := dedupstore.SettleOne(t.Context(), s, c, success); err != nil {
		t.Error(err)
	}
	if o := claim(t, s, request("done"), dedupstore.Done).Outcome; string(o.Result) != "paid" {
		t.Errorf("an outcome is %+v", o)
	}
	if o := claim(t, s, request("publishing"), dedupstore.AcquiredPublish).Outcome; len(o.Produced) != 1 ||
		string(o.Produced[0].Payload) != "1" {
		t.Errorf("an outcome to be published is %+v", o)
	}
	r := request("released")
	r.Holder = "host:1"
	if a := claim(t, s, r, dedupstore.AcquiredRun); a.Claim.Attempt != 2 {
		t.Errorf("after a release of version 3 a claim got attempt %d, want 2", a.Claim.Attempt)
	}
	seen := recordOf(t, s, "released")
	if seen.Holder != "host:1" || len(seen.History) != 1 || seen.History[0].Reason != "database is down" ||
		seen.History[0].Holder != "" {
		t.Errorf("after a release of version 3 the record looks like %+v", seen)
	}
	if err := s.NoteDuplicates(t.Context(), []dedupstore.Duplicates{{Key: r.Key, Count: 2, Last: time.Now()},
		{Key: r.Key, Count: 1, Last: time.Now()}}); err != nil || recordOf(t, s, "released").Duplicates != 3 {
		t.Errorf("%d duplicates of 3 are known, %v", recordOf(t, s, "released").Duplicates, err)
	}
}

// TestNoteDuplicates_AreOfOneLifeOfAKey has a key that is forgotten, and comes again.
func TestNoteDuplicates_AreOfOneLifeOfAKey(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	note := func(n, want int) {
		t.Helper()
		if err := s.NoteDuplicates(t.Context(), []dedupstore.Duplicates{{Key: request("1").Key, Count: n,
			Last: time.Now()}}); err != nil {
			t.Fatal(err)
		}
		if seen := recordOf(t, s.Inbox(), "1"); seen.Duplicates != want {
			t.Errorf("%d duplicates are known, want %d", seen.Duplicates, want)
		}
	}
	passing := request("1")
	passing.Lease, passing.Retention = time.Second, time.Millisecond
	claim(t, s, passing, dedupstore.AcquiredRun)
	note(2, 2)
	note(1, 3)
	lasts(1100 * time.Millisecond)
	if seen := recordOf(t, s, "1"); seen.State != dedupstore.Absent || seen.Duplicates != 0 {
		t.Errorf("an expired record looks like %+v", seen)
	}
	passing.Owner = rand.Text()
	claim(t, s, passing, dedupstore.AcquiredRun)
	if seen := recordOf(t, s, "1"); seen.Duplicates != 0 || len(seen.History) != 0 || seen.Attempts != 1 {
		t.Errorf("a key that came again looks like %+v", seen)
	}
	note(4, 4)
	lasts(1100 * time.Millisecond)
	due(t, pool)
	if removed, err := s.Clean(t.Context(), 10); err != nil || removed != 1 {
		t.Errorf("cleaning removed %d records, %v", removed, err)
	}
	var left int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM oncemill_dedup_duplicates`).Scan(&left); err != nil ||
		left != 0 {
		t.Errorf("%d counts are left of a record that was deleted, %v", left, err)
	}
}

// TestLook_SaysWhatTransactionsSettled has a run of each inbox, and one that joined.
func TestLook_SaysWhatTransactionsSettled(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	finish := success
	finish.Took = 1500 * time.Millisecond
	failure := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "zero \x00 \\0"},
		Retention: long, Took: finish.Took}
	for id, inbox := range map[string]dedupstore.Transactor{"pgx": s.Inbox(), "sql": s.InboxSQL()} {
		for kind, f := range map[string]dedupstore.Finish{"plain": finish, "failed": failure} {
			r := request(id + kind)
			r.Holder = "host:1"
			c := claim(t, inbox, r, dedupstore.AcquiredRun).Claim
			if err := dedupstore.InTxOne(t.Context(), inbox, c, func(context.Context) (dedupstore.Settlement, error) {
				return f, nil
			}); err != nil {
				t.Fatal(err)
			}
			if seen := recordOf(t, s, r.Key.ID); seen.Ended.Sub(seen.Claimed) != f.Took || seen.Holder != "host:1" ||
				seen.Outcome.Reason != f.Outcome.Reason || seen.Decided != c.Fence {
				t.Errorf("%s, %s: the record looks like %+v", id, kind, seen)
			}
		}
	}
	c := runOf(t, s, "joined")
	lasts(20 * time.Millisecond)
	tx := begin(t, pool, "")
	if err := errors.Join(s.Join(txctx.With(t.Context(), &c), tx), tx.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	seen := recordOf(t, s, "joined")
	if took := seen.Ended.Sub(seen.Claimed); took < 15*time.Millisecond || took > time.Minute {
		t.Errorf("a joined run took %v", took)
	}
}

// TestClaim_AHolderThatTheDatabaseCannotKeepIsKeptInASCII has a claim that would never be granted otherwise.
func TestClaim_AHolderThatTheDatabaseCannotKeepIsKeptInASCII(t *testing.T) {
	t.Parallel()
	db := postgrestest.Shared(t).NewDatabase(t, `ENCODING 'EUC_JP' LOCALE 'C' TEMPLATE template0`)
	s := newStore(t, db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" }),
		Config{})
	r := request("1")
	r.Holder = "\U0001F4B8:1"
	if c := claim(t, s, r, dedupstore.AcquiredRun).Claim; c.Holder != r.Holder || recordOf(t, s, "1").Holder != "?:1" {
		t.Errorf("the holder of %+v is kept as %q", c, recordOf(t, s, "1").Holder)
	}
}

func TestLook_ReasonsOfThePastAreShort(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{})
	for id, letter := range map[string]string{"1": "a", "2": "é", "3": "☃", "4": "\U0001F4B8"} {
		if err := dedupstore.SettleOne(t.Context(), s, runOf(t, s, id),
			dedupstore.Release{Reason: strings.Repeat(letter, 200)}); err != nil {
			t.Fatal(err)
		}
		runOf(t, s, id)
		if got := recordOf(t, s, id).History[0].Reason; got != strings.Repeat(letter, 96/len(letter)) {
			t.Errorf("of a reason of %q %d bytes are left, want 96", letter, len(got))
		}
	}
}
