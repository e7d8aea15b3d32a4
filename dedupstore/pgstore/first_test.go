package pgstore

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// firstOf makes a first run of a key.
func firstOf(
	t *testing.T, s dedupstore.Store, r dedupstore.Request, work func(context.Context, dedupstore.Claim) error,
) (dedupstore.Answer, error) {
	t.Helper()
	answers, err := s.(dedupstore.Transactor).InTx(t.Context(), []dedupstore.TxRun{{First: &r}},
		func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			return successes(claims), work(ctx, claims[0])
		})
	if answers == nil || err != nil {
		return dedupstore.Answer{}, err
	}
	return answers[0], nil
}

// successes are the settlements of a batch that has succeeded.
func successes(claims []dedupstore.Claim) (settlements []dedupstore.Settlement) {
	for _, c := range claims {
		settlements = append(settlements, dedupstore.Finish{
			Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: c.Retention,
		})
	}
	return settlements
}

// firstly is a call that the broker counts as the first.
func firstly(id string) oncemill.Call {
	c := callOf(id)
	c.First = true
	return c
}

// versions is how many versions of a key's record have been written, on a table of its own, of one page.
func versions(t *testing.T, pool *pgxpool.Pool, id string) (n int) {
	t.Helper()
	const query = `SELECT (ctid::text::point)[1] FROM oncemill_dedup WHERE key LIKE '%:' || $1`
	err := pool.QueryRow(t.Context(), query, id).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFirst_WritesItsRecordOnceUnlessThereIsMoreToSay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		work func(ctx context.Context, c dedupstore.Claim) error
		want int
	}{
		"plain":                   {effect, 1},
		"slow":                    {func(context.Context, dedupstore.Claim) error { lasts(quick); return nil }, 2},
		"commits without waiting": {sayOnPgx(`SET LOCAL synchronous_commit = off`), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			s := newStore(t, pool, Config{})
			if a, err := firstOf(t, s.Inbox(), request("1"), c.work); err != nil || a.Status != "" {
				t.Fatal(a, err)
			}
			if n := versions(t, pool, "1"); n != c.want {
				t.Errorf("%d versions of the record were written, want %d", n, c.want)
			}
			claim(t, s, request("1"), dedupstore.Done)
		})
	}
}

// sayOnPgx is work that makes a statement.
func sayOnPgx(query string) func(context.Context, dedupstore.Claim) error {
	return func(ctx context.Context, _ dedupstore.Claim) error {
		_, err := Tx(ctx).Exec(ctx, query)
		return err
	}
}

// A holder that stands still sends nothing: the server ends its session after the lease, and another delivery has the
// key.
func TestFirst_FrozenHolderIsCutOffAfterItsLease(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	r := request("1")
	r.Lease = time.Second
	frozen, err := sqlstore.NewTransaction([]dedupstore.TxRun{{First: &r}})
	if err != nil {
		t.Fatal(err)
	}
	tx := begin(t, pool, pgx.ReadCommitted)
	start := time.Now()
	for _, one := range s.inbox.newRun(frozen).firsts() {
		if _, err := tx.Exec(t.Context(), one.query, one.args...); err != nil {
			t.Fatal(err)
		}
	}
	if a := claim(t, s, request("1"), dedupstore.Busy); a.Wait <= 0 {
		t.Errorf("a twin is to wait for %v", a.Wait)
	}
	until(t, "another owner", func() bool { return ask(t, s, request("1")).Status == dedupstore.AcquiredRun })
	if took := time.Since(start); took < r.Lease {
		t.Errorf("the holder was cut off after %v, before its lease of %v", took, r.Lease)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the holder has committed")
	}
}

// A handler that lives keeps its transaction for longer than its lease, whatever it has done in it before.
func TestFirst_LiveHandlerOutlastsItsLease(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"nothing": func(context.Context, pgx.Tx) error { return nil },
		"a row": func(ctx context.Context, tx pgx.Tx) error {
			var n int
			return tx.QueryRow(ctx, `SELECT count(*) FROM effects`).Scan(&n)
		},
		"rows": func(ctx context.Context, tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `SELECT id FROM effects`)
			_, err := pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		},
		"a batch": func(ctx context.Context, tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue(`SELECT 1`)
			return tx.SendBatch(ctx, &b).Close()
		},
		"a savepoint": func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, `SELECT 1`); return err })
		},
		"a savepoint that failed": func(ctx context.Context, tx pgx.Tx) error {
			if pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, `SELECT 1/0`); return err }) == nil {
				return errors.New("no error")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			s := newStore(t, pool, Config{})
			r := request("1")
			r.Lease = 6 * time.Second
			a, err := firstOf(t, s.Inbox(), r, func(ctx context.Context, c dedupstore.Claim) error {
				if err := query(ctx, Tx(ctx)); err != nil {
					return err
				}
				lasts(7 * r.Lease / 6)
				return errors.Join(context.Cause(ctx), effect(ctx, c))
			})
			if err != nil || a.Status != "" {
				t.Error(a.Status, err)
			}
			wantEffects(t, pool, "1", 1)
		})
	}
}

func TestFirst_LostConnectionCancelsItsHandler(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	r := request("1")
	r.Lease = 300 * time.Millisecond
	_, err := firstOf(t, s.Inbox(), r, func(ctx context.Context, _ dedupstore.Claim) error {
		var pid int
		if err := Tx(ctx).QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		mustExec(t, pool, `SELECT pg_terminate_backend($1)`, pid)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("the run returned %v, want the cause of its context", err)
	}
	until(t, "the server to end the session", func() bool {
		a, err := dedupstore.ClaimOne(t.Context(), s, request("1"))
		return err == nil && a.Status == dedupstore.AcquiredRun
	})
}

// TestFirst_FailureIsRecordedWhenItsDeliveryHasEnded: its client has gone, or its worker drains.
func TestFirst_FailureIsRecordedWhenItsDeliveryHasEnded(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := g.Run(ctx, firstly("1"), func(context.Context) (dedupstore.Outcome, error) {
		cancel()
		return dedupstore.Outcome{}, oncemill.Permanent(errors.New("card refused"))
	})
	if err != nil || res.Outcome.Kind != dedupstore.Failed {
		t.Errorf("the run returned %+v, %v, want its failure", res, err)
	}
	if a := claim(t, s, request("1"), dedupstore.Done); a.Outcome.Reason != "card refused" {
		t.Errorf("the record has %+v", a.Outcome)
	}
}

// TestFirst_TwinsAreAnsweredAtOnce measures what the best of some tries takes beside an open transaction.
func TestFirst_TwinsAreAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	_, err := firstOf(t, s.Inbox(), request("1"), func(ctx context.Context, c dedupstore.Claim) error {
		for name, twin := range map[string]func() (dedupstore.Answer, error){
			"a claim": func() (dedupstore.Answer, error) { return dedupstore.ClaimOne(ctx, s.Inbox(), request("1")) },
			"a batch": func() (dedupstore.Answer, error) {
				r := s.Claim(ctx, []dedupstore.Request{request("1"), request("2"), request("3")})[0]
				return r.Answer, r.Err
			},
			"a first run": func() (dedupstore.Answer, error) {
				return firstOf(t, s.Inbox(), request("1"), func(context.Context, dedupstore.Claim) error {
					t.Error("a twin was called")
					return nil
				})
			},
		} {
			best := time.Hour
			for range 20 {
				start := time.Now()
				a, err := twin()
				best = min(best, time.Since(start))
				if err != nil || a.Status != dedupstore.Busy || a.Wait != long {
					t.Errorf("%s: a twin was answered %q, wait %v, %v", name, a.Status, a.Wait, err)
				}
			}
			if best > 50*time.Millisecond {
				t.Errorf("%s of a twin took %v, want less than 50 ms", name, best)
			}
		}
		return effect(ctx, c)
	})
	if err != nil {
		t.Error(err)
	}
}

// Keys whose locks have the same hash share a lock.
func TestFirst_LockOfAnotherKeyOnlyMeansBusy(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	other := begin(t, pool, pgx.ReadCommitted)
	if _, err := other.Exec(t.Context(), `SELECT pg_advisory_xact_lock(hashtextextended($1,
	'oncemill_dedup'::regclass::oid::bigint))`, request("1").Key.String()); err != nil {
		t.Fatal(err)
	}
	unwanted := func(context.Context, dedupstore.Claim) error {
		t.Error("the handler was called")
		return nil
	}
	if a, err := firstOf(t, s.Inbox(), request("1"), unwanted); err != nil || a.Status != dedupstore.Busy {
		t.Errorf("answered %q, %v, want busy", a.Status, err)
	}
	claim(t, s, request("1"), dedupstore.Busy)
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, err := firstOf(t, s.Inbox(), request("1"), effect); err != nil || a.Status != "" {
		t.Errorf("answered %q, %v, want a run", a.Status, err)
	}
	wantEffects(t, pool, "1", 1)
}

// If others change what the handler reads, that is a conflict, and no attempt.
func TestFirst_ConflictIsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			mustExec(t, pool, `CREATE TABLE balance (cents bigint)`)
			mustExec(t, pool, `INSERT INTO balance VALUES (0)`)
			s := newStore(t, pool, Config{Isolation: level})
			calls := 0
			res, err := newGuard(t, s.Inbox(), 30*time.Second).Run(t.Context(), firstly("1"),
				func(ctx context.Context) (dedupstore.Outcome, error) {
					if calls++; calls == 1 { // after the transaction's snapshot
						mustExec(t, pool, `UPDATE balance SET cents = cents + 1`)
					}
					_, err := Tx(ctx).Exec(ctx, `UPDATE balance SET cents = cents + 10`)
					return dedupstore.Outcome{}, err
				})
			if err != nil || res.Attempt != 1 || calls != 2 {
				t.Errorf("%d calls, attempt %d, %v, want two calls of attempt 1", calls, res.Attempt, err)
			}
			_, err = newGuard(t, s.Inbox(), 30*time.Second).Run(t.Context(), firstly("2"),
				func(ctx context.Context) (dedupstore.Outcome, error) {
					_, err := Tx(ctx).Exec(ctx, `DO $$ BEGIN RAISE 'always' USING ERRCODE = '40001'; END $$`)
					return dedupstore.Outcome{}, err
				})
			retry, ok := answertest.Is(err, oncemill.StatusRetry)
			if !ok || !retry.Uncounted {
				t.Errorf("a transaction that is always refused returned %v, want an uncounted retry", err)
			}
		})
	}
}

func TestFirst_FailuresCountAsTheFirstAttempt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setting string
		query   string
	}{
		"a handler's error":  {"", `SELECT 1/0`},
		"statement_timeout":  {"3000", `SELECT pg_sleep(60)`},
		"a failing deferred": {"", `INSERT INTO children VALUES (1)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, func(cfg *pgxpool.Config) {
				if c.setting != "" {
					cfg.ConnConfig.RuntimeParams["statement_timeout"] = c.setting
				}
			})
			mustExec(t, pool, `CREATE TABLE parents (id int PRIMARY KEY)`)
			mustExec(t, pool, `CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)`)
			s := newStore(t, pool, Config{})
			g := newGuard(t, s.Inbox(), 30*time.Second)
			run := func(call oncemill.Call) (oncemill.Result, error) {
				return g.Run(t.Context(), call, func(ctx context.Context) (dedupstore.Outcome, error) {
					if _, err := Tx(ctx).Exec(ctx, `INSERT INTO effects VALUES ('1', 1)`); err != nil {
						return dedupstore.Outcome{}, err
					}
					_, err := Tx(ctx).Exec(ctx, c.query)
					return dedupstore.Outcome{}, err
				})
			}
			_, err := run(firstly("1"))
			if retry, ok := answertest.Is(err, oncemill.StatusRetry); !ok || retry.Attempt != 1 || retry.Uncounted {
				t.Fatalf("the first run returned %v, want a retry of attempt 1", err)
			}
			records, err := s.Look(t.Context(), []dedupstore.Key{firstly("1").Key})
			if err != nil || records[0].State != dedupstore.Retryable || records[0].Attempts != 1 {
				t.Errorf("the record is %+v, %v, want one attempt", records, err)
			}
			wantEffects(t, pool, "1", 0)
			again := callOf("1")
			again.MaxWait = 10 * time.Second
			if _, err := run(again); err == nil {
				t.Error("the second run had no error")
			} else if retry, ok := answertest.Is(err, oncemill.StatusRetry); !ok || retry.Attempt != 2 {
				t.Errorf("the second run returned %v, want a retry of attempt 2", err)
			}
		})
	}
}

// A handler's own commit also commits its outcome; only what it does afterwards has none.
func TestFirst_HandlersCommitIsSaid(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{Logger: slog.New(slog.DiscardHandler)})
	for id, query := range map[string]string{"1": `COMMIT`, "2": `COMMIT; BEGIN`} {
		_, err := firstOf(t, s.Inbox(), request(id), func(ctx context.Context, c dedupstore.Claim) error {
			if err := effect(ctx, c); err != nil {
				return err
			}
			_, err := Tx(ctx).Exec(ctx, query)
			return err
		})
		if !errors.Is(err, dedupstore.ErrEnded) {
			t.Errorf("%s: the run returned %v, want ErrEnded", query, err)
		}
		wantEffects(t, pool, id, 1)
		claim(t, s, request(id), dedupstore.Done)
	}
}

// Each message of a batch is remembered for its window, counted from when the batch has ended.
func TestFirsts_OfASlowBatchAreAllRememberedForTheirWindow(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	var runs []dedupstore.TxRun
	for _, id := range []string{"1", "2", "3"} {
		r := request(id)
		r.Lease = 5 * time.Second
		runs = append(runs, dedupstore.TxRun{First: &r})
	}
	_, err := s.Inbox().InTx(t.Context(), runs,
		func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			if len(claims) != 3 {
				t.Errorf("%d of 3 take part", len(claims))
			}
			lasts(2 * quick)
			return successes(claims), effect(ctx, claims[0])
		})
	if err != nil {
		t.Fatal(err)
	}
	var apart float64
	err = pool.QueryRow(t.Context(),
		`SELECT extract(epoch FROM max(expires_at) - min(expires_at)) FROM oncemill_dedup`).Scan(&apart)
	if err != nil || apart > 0.5 {
		t.Errorf("their windows end %v s apart, %v", apart, err)
	}
}

// A handler may use large objects for longer than a lease.
func TestFirst_HeartbeatsLeaveLargeObjectsAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{}).Inbox()
	r := request("1")
	r.Lease = 2 * time.Second
	_, err := firstOf(t, s, r, func(ctx context.Context, _ dedupstore.Claim) error {
		objects := Tx(ctx).LargeObjects()
		oid, err := objects.Create(ctx, 0)
		if err != nil {
			return err
		}
		o, err := objects.Open(ctx, oid, pgx.LargeObjectModeWrite)
		if err != nil {
			return err
		}
		for end := time.Now().Add(3 * r.Lease / 2); time.Now().Before(end); {
			if _, err := o.Write(make([]byte, 64<<10)); err != nil {
				return err
			}
		}
		return o.Close()
	})
	if err != nil {
		t.Error(err)
	}
}
