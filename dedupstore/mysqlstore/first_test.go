package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

// A work is that of one run.
type work = func(ctx context.Context) (dedupstore.Settlement, error)

// oneRun are the ways in which a run gets into its transaction.
var oneRun = map[string]func(t *testing.T, s *Store, r dedupstore.Request, w work) error{
	"claimed": func(t *testing.T, s *Store, r dedupstore.Request, w work) error {
		return dedupstore.InTxOne(t.Context(), s.Inbox(), claim(t, s, r, dedupstore.AcquiredRun).Claim, w)
	},
	"first": func(t *testing.T, s *Store, r dedupstore.Request, w work) error {
		if err := s.usable(t.Context()); err != nil {
			t.Error(err)
		}
		answers, err := firsts(t, s, w, r)
		if err == nil && answers != nil {
			t.Errorf("a first run was answered %+v", answers)
		}
		return err
	},
}

// firsts makes first runs in one transaction. All end as one work says.
func firsts(t *testing.T, s *Store, w work, requests ...dedupstore.Request) ([]dedupstore.Answer, error) {
	runs := make([]dedupstore.TxRun, len(requests))
	for i := range requests {
		runs[i].First = &requests[i]
	}
	return s.Inbox().InTx(t.Context(), runs,
		func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			settlement, err := w(ctx)
			settlements := make([]dedupstore.Settlement, len(claims))
			for i := range settlements {
				settlements[i] = settlement
			}
			return settlements, err
		})
}

var plainSuccess = dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: long}

// Before its first operation the store does not know the server, and MySQL takes no first runs.
func TestFirst_OnlyMariaDBTakesThem(t *testing.T) {
	t.Parallel()
	s := newStore(t, newDB(t))
	if s.Inbox().TakesFirst() {
		t.Error("a store that has not talked to its server takes first runs")
	}
	runOf(t, s, "1")
	if !s.Inbox().TakesFirst() {
		t.Error("a store on MariaDB takes no first runs")
	}
	s.mariadb.Store(false)
	_, err := firsts(t, s, func(context.Context) (dedupstore.Settlement, error) {
		t.Error("work is called")
		return success, nil
	}, request("2"))
	if _, invalid := errors.AsType[*dedupstore.InvalidError](err); !invalid {
		t.Errorf("a first run on MySQL returned %v, want an InvalidError", err)
	}
}

// A handler that commits, and fails then, must not run again: a part of its work would be there twice.
func TestFirst_AHandlersCommitEndsAsUnknown(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	runOf(t, s, "other") // it knows its server
	g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for range 2 {
		res, err := g.Run(t.Context(), oncemill.Call{Key: request("1").Key, First: true},
			func(ctx context.Context) (dedupstore.Outcome, error) {
				calls++
				err := errors.Join(effect(ctx, "1"), exec(ctx, "COMMIT"))
				return dedupstore.Outcome{}, errors.Join(err, errors.New("card refused"))
			})
		if err != nil || res.Outcome.Kind != dedupstore.Unknown || calls != 1 {
			t.Errorf("it ended with %+v, %v, after %d calls; want unknown, after one", res, err, calls)
		}
	}
	wantEffects(t, db, "1", 1)
}

// What a batch leaves out it must not lock: others renew it meanwhile.
func TestFirsts_LeaveTheRecordsOfOthersAlone(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	running := runOf(t, s, "running")
	answers, err := firsts(t, s, func(ctx context.Context) (dedupstore.Settlement, error) {
		began := time.Now()
		err := dedupstore.ExtendOne(ctx, s, dedupstore.Extension{Claim: running, Lease: long})
		if took := time.Since(began); err != nil || took > 10*contendedFor { // it would be contended if it were locked
			t.Errorf("a renewal beside a batch took %v, %v", took, err)
		}
		return plainSuccess, effect(ctx, "batch")
	}, request("1"), request("running"), request("2"))
	if err != nil || answers[1].Status != dedupstore.Busy || answers[0].Status != "" || answers[2].Status != "" {
		t.Errorf("the batch was answered %+v, %v", answers, err)
	}
	wantEffects(t, db, "batch", 1)
}

// Where a lock timeout rolls everything back, a batch beside a key that somebody else runs still commits.
func TestFirsts_CommitWhereALockTimeoutRollsBack(t *testing.T) {
	t.Parallel()
	db := mysqltest.Start(t, "--innodb-rollback-on-timeout").NewDatabase(t).Open(t)
	mustExec(t, db, effectsTable)
	s := newStore(t, db)
	calls := 0
	err := oneRun["first"](t, s, request("3"), func(ctx context.Context) (dedupstore.Settlement, error) {
		var requests []dedupstore.Request
		for i := range 6 {
			requests = append(requests, request(fmt.Sprint(i)))
		}
		answers, err := firsts(t, s, func(ctx context.Context) (dedupstore.Settlement, error) {
			calls++
			return plainSuccess, effect(ctx, "batch")
		}, requests...)
		if err != nil || calls != 1 || answers[3].Status != dedupstore.Busy || answers[0].Status != "" {
			t.Errorf("the batch was answered %+v, %v, after %d calls", answers, err, calls)
		}
		return success, effect(ctx, "3")
	})
	if err != nil {
		t.Error(err)
	}
	wantEffects(t, db, "batch", 1)
	for i := range 6 {
		claim(t, s, request(fmt.Sprint(i)), dedupstore.Done)
	}
}

// A claim of many keys is not held up by one that is in a transaction, and tells how long that may take.
func TestClaim_PassesAKeyThatIsInATransaction(t *testing.T) {
	t.Parallel()
	s := newStore(t, newDB(t))
	err := oneRun["first"](t, s, request("17"), func(context.Context) (dedupstore.Settlement, error) {
		var requests []dedupstore.Request
		for i := range 64 {
			requests = append(requests, request(fmt.Sprint(i)))
		}
		for i, result := range s.Claim(t.Context(), requests) {
			want := dedupstore.AcquiredRun
			if i == 17 {
				want = dedupstore.Busy
				if result.Answer.Wait != requests[i].Lease {
					t.Errorf("the twin is told to wait %v, want its lease", result.Answer.Wait)
				}
			}
			if result.Err != nil || result.Answer.Status != want {
				t.Errorf("key %d was answered %+v, want %s", i, result, want)
			}
		}
		return success, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Each message of a slow batch is remembered for its window, counted from the end, and no longer than a lease beyond.
func TestFirsts_AreRememberedForTheirWindow(t *testing.T) {
	t.Parallel()
	for name, retention := range map[string]time.Duration{"as requested": long, "another": 2 * long} {
		db := newDB(t)
		s := newStore(t, db)
		if err := s.usable(t.Context()); err != nil {
			t.Fatal(err)
		}
		slow := request("1")
		slow.Lease = time.Second
		for _, requests := range [][]dedupstore.Request{{slow}, {request("2"), request("3")}} {
			answers, err := firsts(t, s, func(context.Context) (dedupstore.Settlement, error) {
				<-time.After(2 * slow.Lease)
				f := plainSuccess
				f.Retention = retention
				return f, nil
			}, requests...)
			if err != nil || answers != nil {
				t.Fatalf("%+v, %v", answers, err)
			}
			for _, r := range requests {
				found, now, err := s.load(t.Context(), db, []string{sqlstore.IDOf(r.Key.String())}, "")
				if err != nil || found[sqlstore.IDOf(r.Key.String())] == nil {
					t.Fatalf("%v, no record", err)
				}
				left := found[sqlstore.IDOf(r.Key.String())].Expires.Sub(now)
				if left < retention-time.Minute || left > retention+r.Lease {
					t.Errorf("%s: %s is remembered for %v, want %v", name, r.Key.ID, left, retention)
				}
			}
		}
	}
}

// A record that a first run has written is as one that was claimed and finished.
func TestFirst_RecordsAreThoseOfClaims(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	for name, finish := range map[string]dedupstore.Finish{"plain": plainSuccess, "with a result": success} {
		finish.Took = 3 * time.Second
		var rows []*sqlstore.Row
		for way, run := range oneRun {
			r := request(name + way)
			r.Holder, r.Trace = "host:1", "trace"
			r.Fingerprint = dedupstore.Fingerprint{Scheme: "payload", Sum: "abc"}
			if err := run(t, s, r, func(context.Context) (dedupstore.Settlement, error) { return finish, nil }); err != nil {
				t.Fatal(err)
			}
			found, _, err := s.load(t.Context(), db, []string{sqlstore.IDOf(r.Key.String())}, "")
			if err != nil || len(found) != 1 {
				t.Fatal(err, found)
			}
			for _, rec := range found {
				if rec.Ended.Sub(rec.Claimed) != finish.Took || rec.Settled[0] != r.Owner || rec.Decided != rec.Fence {
					t.Errorf("%s, %s: the record is %+v", name, way, rec)
				}
				rec.ID, rec.Key, rec.Owner, rec.Settled, rec.Fence, rec.Decided = "", "", "", nil, 0, 0
				rec.First, rec.Claimed, rec.Ended, rec.Expires = time.Time{}, time.Time{}, time.Time{}, time.Time{}
				rows = append(rows, rec)
			}
		}
		if a, b := fmt.Sprintf("%+v", rows[0]), fmt.Sprintf("%+v", rows[1]); a != b {
			t.Errorf("%s: the records differ:\n%s\n%s", name, a, b)
		}
	}
}

// The driver's transaction of a handler makes no round trip of its own, and the pool's connection comes back.
func TestInbox_HandlersUseStatementsAsOnThePool(t *testing.T) {
	t.Parallel()
	db := newDB(t, func(c *mysql.Config) { c.Params = map[string]string{"wait_timeout": "777"} })
	s := newStore(t, db)
	for way, run := range oneRun {
		err := run(t, s, request(way), func(ctx context.Context) (dedupstore.Settlement, error) {
			tx := Tx(ctx)
			stmt, err := tx.PrepareContext(ctx, "INSERT INTO effects VALUES (?)")
			if err != nil {
				return nil, err
			}
			if _, err := stmt.ExecContext(ctx, sql.NullString{String: way, Valid: true}); err != nil {
				return nil, err
			}
			var name string
			err = tx.QueryRowContext(ctx, "SELECT name FROM effects WHERE name = ?", way).Scan(&name)
			if err == nil && name != way {
				err = fmt.Errorf("it reads %q", name)
			}
			return success, err
		})
		if err != nil {
			t.Errorf("%s: %v", way, err)
		}
		wantEffects(t, db, way, 1)
	}
	if stats := db.Stats(); stats.InUse != 0 {
		t.Errorf("%d connections are in use", stats.InUse)
	}
	wantSessions(t, db)
}
