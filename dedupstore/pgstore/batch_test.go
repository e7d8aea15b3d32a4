package pgstore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// requests returns claims of so many keys.
func requests(n int) (all []dedupstore.Request) {
	for i := range n {
		all = append(all, request(fmt.Sprint(i)))
	}
	return all
}

// claims grants so many runs, in one batch.
func claims(t testing.TB, s dedupstore.Store, n int) (all []dedupstore.Claim) {
	t.Helper()
	for i, r := range s.Claim(t.Context(), requests(n)) {
		if r.Err != nil || r.Answer.Status != dedupstore.AcquiredRun {
			t.Fatalf("claim %d of %d was answered %q, %v", i, n, r.Answer.Status, r.Err)
		}
		all = append(all, r.Answer.Claim)
	}
	return all
}

// TestStore_ABatchTakesOneRoundTrip once all statements are prepared.
func TestStore_ABatchTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct, func(c *pgxpool.Config) { c.MaxConns = 2 })
	s := unmigrated(t, pool, Config{})
	var trips atomic.Int64
	p.inject(func(int, string) fault {
		trips.Add(1)
		return faithful
	})
	const n = 300
	var taken []dedupstore.Claim
	for what, step := range []func(){
		func() { taken = claims(t, s, n) },
		func() {
			var extensions []dedupstore.Extension
			for _, c := range taken {
				extensions = append(extensions, dedupstore.Extension{Claim: c, Lease: long, Started: true})
			}
			for _, err := range s.Extend(t.Context(), extensions) {
				if err != nil {
					t.Error(err)
				}
			}
		},
		func() {
			var settlings []dedupstore.Settling
			for _, c := range taken {
				settlings = append(settlings, dedupstore.Settling{Claim: c, Settlement: success})
			}
			for _, err := range s.Settle(t.Context(), settlings) {
				if err != nil {
					t.Error(err)
				}
			}
		},
	} {
		trips.Store(0)
		if step(); trips.Load() != 1 {
			t.Errorf("step %d of %d messages took %d round trips, want 1", what, n, trips.Load())
		}
	}
}

// TestStore_ARefusalIsOfOneOperation has a trigger that refuses what is done with some keys.
func TestStore_ARefusalIsOfOneOperation(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	taken := claims(t, s, 6)
	mustExec(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF EXISTS (SELECT FROM oncemill_dedup x WHERE x.id = NEW.id AND x.key LIKE '%:3')
			OR to_jsonb(NEW)->>'key' LIKE '%:refused' THEN
			RAISE EXCEPTION 'refused' USING ERRCODE = '22003';
		END IF;
		RETURN NEW; END $$`)
	for _, table := range []string{"oncemill_dedup", "oncemill_dedup_beats"} {
		mustExec(t, pool, `CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON `+table+`
			FOR EACH ROW EXECUTE FUNCTION refuse()`)
	}
	want := func(what string, i int, err error, refused bool) {
		t.Helper()
		if (codeOf(err) == "22003") != refused || !refused && err != nil {
			t.Errorf("%s %d: %v, refused: %v", what, i, err, refused)
		}
	}
	fresh := []dedupstore.Request{request("one"), request("refused"), request("two")}
	for i, r := range s.Claim(t.Context(), fresh) {
		want("claim", i, r.Err, i == 1)
	}
	var extensions []dedupstore.Extension
	var settlings []dedupstore.Settling
	for _, c := range taken {
		extensions = append(extensions, dedupstore.Extension{Claim: c, Lease: long, Started: true})
		settlings = append(settlings, dedupstore.Settling{Claim: c, Settlement: dedupstore.Release{}})
	}
	for i, err := range s.Extend(t.Context(), extensions) {
		want("extension", i, err, i == 3)
	}
	for i, err := range s.Settle(t.Context(), settlings) {
		want("settlement", i, err, i == 3)
	}
	for i, r := range s.Claim(t.Context(), requests(6)) {
		want("second claim", i, r.Err, false) // the refused one is still held
		if status := r.Answer.Status; (status == dedupstore.Busy) != (i == 3) {
			t.Errorf("claim %d was answered %s", i, status)
		}
	}
}

// TestStore_ALockedRecordHoldsNoOtherUp has batches with a record that somebody has locked.
func TestStore_ALockedRecordHoldsNoOtherUp(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	taken := claims(t, s, 3)
	receipt := success
	receipt.Outcome.Produced = []dedupstore.Produced{{ID: "receipt", Topic: "receipts"}}
	lock := func() pgx.Tx {
		tx := begin(t, pool, pgx.ReadCommitted)
		if _, err := tx.Exec(t.Context(), `SELECT FROM oncemill_dedup WHERE key LIKE '%:1' FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	met := func(query string) func() bool {
		return func() (met bool) {
			if err := pool.QueryRow(t.Context(), query).Scan(&met); err != nil {
				t.Error(err)
			}
			return met
		}
	}
	free := func(tx pgx.Tx, group *sync.WaitGroup) {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		group.Wait()
	}
	repeated := func(do func() []error) { // until the lock is gone
		var errs []error
		until(t, "the end of a batch", func() bool {
			errs = do()
			return !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, sqlstore.ErrContended) })
		})
		for i, err := range errs {
			if err != nil {
				t.Errorf("operation %d: %v", i, err)
			}
		}
	}
	var group sync.WaitGroup
	tx := lock()
	group.Go(func() {
		repeated(func() []error {
			return s.Extend(t.Context(), []dedupstore.Extension{
				{Claim: taken[0], Lease: 2 * long}, {Claim: taken[1], Lease: 2 * long},
				{Claim: taken[2], Lease: 2 * long}, {Claim: taken[1], Lease: 3 * long},
			})
		})
	})
	until(t, "the others", met(`SELECT count(*) = 2 FROM oncemill_dedup_beats`))
	free(tx, &group)
	if !met(`SELECT b.lease_until > now() + interval '150 minutes' FROM oncemill_dedup_beats b
		JOIN oncemill_dedup USING (id) WHERE key LIKE '%:1'`)() {
		t.Error("the second extension of a key was not the last one")
	}
	tx = lock()
	group.Go(func() {
		repeated(func() []error {
			return s.Settle(t.Context(), []dedupstore.Settling{
				{Claim: taken[0], Settlement: success}, {Claim: taken[1], Settlement: receipt},
				{Claim: taken[2], Settlement: success},
				{Claim: taken[1], Settlement: dedupstore.Published{Retention: long}},
			})
		})
	})
	until(t, "the others", met(`SELECT count(*) = 2 FROM oncemill_dedup WHERE state = 'done'`))
	free(tx, &group)
	claim(t, s, request("1"), dedupstore.Done)

	// What is lost anyhow does not wait.
	tx = lock()
	defer tx.Rollback(t.Context())
	zombie := taken[1]
	zombie.Owner = rand.Text()
	for _, err := range append(s.Extend(t.Context(), []dedupstore.Extension{{Claim: zombie, Lease: long}}),
		s.Settle(t.Context(), []dedupstore.Settling{{Claim: zombie, Settlement: dedupstore.Release{}}})...) {
		if !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("a zombie got %v, want ErrClaimLost", err)
		}
	}
}

// TestExtend_TheTransactionOfAJoinIsNotWaitedFor has one that stays open.
func TestExtend_TheTransactionOfAJoinIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	taken := claims(t, s, 2)
	tx := begin(t, pool, pgx.ReadCommitted)
	if err := s.Join(txctx.With(t.Context(), &taken[1]), tx); err != nil {
		t.Fatal(err)
	}
	for i, err := range s.Extend(t.Context(), []dedupstore.Extension{
		{Claim: taken[0], Lease: long, Started: true}, {Claim: taken[1], Lease: long, Started: true},
	}) {
		if err != nil {
			t.Errorf("extension %d beside a Join: %v", i, err)
		}
	}
	errs := s.Settle(t.Context(), []dedupstore.Settling{{Claim: taken[0], Settlement: success},
		{Claim: taken[1], Settlement: success}})
	if errs[0] != nil || !errors.Is(errs[1], sqlstore.ErrContended) {
		t.Errorf("settlements beside a Join: %v", errs)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := dedupstore.SettleOne(t.Context(), s, taken[1], success); err != nil {
		t.Error(err)
	}
}

// TestExtend_OnlyWhatHasStartedIsParked has runs that were extended before and after their beginning.
func TestExtend_OnlyWhatHasStartedIsParked(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{})
	again := func(id string) dedupstore.Request {
		r := brief(id)
		r.ParkExpired = true
		return r
	}
	for id, marks := range map[string][]bool{"waiting": {false, false}, "started": {false, true, false}} {
		c := claim(t, s, again(id), dedupstore.AcquiredRun).Claim
		for _, started := range marks {
			x := dedupstore.Extension{Claim: c, Lease: 50 * time.Millisecond, Started: started}
			if err := dedupstore.ExtendOne(t.Context(), s, x); err != nil {
				t.Fatal(err)
			}
		}
		lasts(60 * time.Millisecond)
		want := dedupstore.AcquiredRun
		if id == "started" {
			want = dedupstore.AcquiredPublish
		}
		c = claim(t, s, again(id), want).Claim
		if want == dedupstore.AcquiredRun { // the mark is of one run
			x := dedupstore.Extension{Claim: c, Lease: 50 * time.Millisecond}
			if err := dedupstore.ExtendOne(t.Context(), s, x); err != nil {
				t.Fatal(err)
			}
			lasts(60 * time.Millisecond)
			claim(t, s, again(id), dedupstore.AcquiredRun)
		}
	}
}

// TestClaim_EachOfABatchGetsWhatItAskedFor has a batch that is more than one statement carries, of several leases and
// windows, and in which some keys are asked for twice.
func TestClaim_EachOfABatchGetsWhatItAskedFor(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			s := newStore(t, pool, Config{})
			var requests []dedupstore.Request
			for i := range 100 {
				r := request(fmt.Sprint(i % 90)) // the last ten are twins
				r.Lease += time.Duration(i%90/40) * time.Minute
				r.Retention += time.Duration(i%90/60) * time.Hour
				r.Trace, r.Fingerprint = fmt.Sprint("trace-", i%90),
					dedupstore.Fingerprint{Scheme: "v1", Sum: fmt.Sprint(i % 90)}
				requests = append(requests, r)
			}
			granted := map[string]dedupstore.Claim{}
			for i, result := range s.Claim(t.Context(), requests) {
				if result.Err != nil {
					t.Fatal(result.Err)
				}
				c := result.Answer.Claim
				_, twin := granted[requests[i].Key.ID]
				switch result.Answer.Status {
				case dedupstore.AcquiredRun:
					if twin || c.Owner != requests[i].Owner {
						t.Errorf("claim %d was granted to %q; its key was granted before: %v", i, c.Owner, twin)
					}
					granted[c.Key.ID] = c
				case dedupstore.Busy:
					if i%90 >= 10 {
						t.Errorf("claim %d is busy, and has no twin", i)
					}
				default:
					t.Errorf("claim %d was answered %q", i, result.Answer.Status)
				}
			}
			if len(granted) != 90 {
				t.Errorf("%d keys were granted, want 90", len(granted))
			}
			for i := range 90 {
				r, c := requests[i], granted[requests[i].Key.ID]
				var lease, life, clean time.Duration
				var owner, trace, print string
				var fence int64
				if err := pool.QueryRow(t.Context(), `
SELECT lease_until - first_at, expires_at - first_at, clean_at - first_at, owner, trace, print, fence
FROM oncemill_dedup WHERE key = $1`,
					r.Key.String()).Scan(&lease, &life, &clean, &owner, &trace, &print, &fence); err != nil {
					t.Fatal(err)
				}
				wantLife := r.Lease + r.Retention
				for _, d := range [][2]time.Duration{{lease, r.Lease}, {life, wantLife},
					{clean, wantLife + wantLife/16}} {
					if off := d[0] - d[1]; off.Abs() > 100*time.Millisecond {
						t.Errorf("record %d ends %v, %v and %v after its claim, want %v, %v and a sixteenth more", i,
							lease, life, clean, r.Lease, wantLife)
						break
					}
				}
				if owner != c.Owner || fence != int64(c.Fence) || trace != r.Trace || print != "v1:"+r.Fingerprint.Sum {
					t.Errorf("record %d is of owner %q, fence %d, trace %q, print %q", i, owner, fence, trace, print)
				}
			}
		})
	}
}
