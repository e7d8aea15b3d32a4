package pgstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// newGuard returns a guard whose retries are due at once.
func newGuard(t testing.TB, s dedupstore.Store, lease time.Duration) *oncemill.Guard {
	t.Helper()
	g, err := oncemill.NewGuard(s, oncemill.Policy{
		Lease: lease, MaxAttempts: 50, Backoff: oncemill.Backoff{Min: time.Millisecond, Max: time.Millisecond},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func callOf(id string) oncemill.Call { return oncemill.Call{Key: request(id).Key} }

// TestInbox_HandlersOfManyLeasesCommitAtTheFirstTry is what heartbeats in the record would make fail.
func TestInbox_HandlersOfManyLeasesCommitAtTheFirstTry(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			s := newStore(t, pool, Config{Isolation: level})
			runOf(t, s.Inbox(), "first") // a guard gives a claim a sixth of its lease: not to be spent on connecting
			const lease = 6 * time.Second
			calls := 0
			res, err := newGuard(t, s.Inbox(), lease).Run(t.Context(), callOf("1"),
				func(ctx context.Context) (dedupstore.Outcome, error) {
					calls++
					if _, err := Tx(ctx).Exec(ctx, `INSERT INTO effects VALUES ('1', 1)`); err != nil {
						return dedupstore.Outcome{}, err
					}
					lasts(7 * lease / 6)
					return dedupstore.Outcome{}, nil
				})
			if err != nil || res.Attempt != 1 || calls != 1 {
				t.Errorf("%d calls ended with attempt %d, %v, want one", calls, res.Attempt, err)
			}
			var beats int
			err = pool.QueryRow(t.Context(), `SELECT count(*) FROM oncemill_dedup_beats`).Scan(&beats)
			if err != nil || beats != 1 {
				t.Errorf("%d keys have heartbeats (%v), want 1", beats, err)
			}
			wantEffects(t, pool, "1", 1)
		})
	}
}

// waitsForALock reports whether somebody who works in the schema of the test waits for a lock.
func waitsForALock(t testing.TB, pool *pgxpool.Pool) (waits bool) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `
SELECT EXISTS (SELECT FROM pg_locks w JOIN pg_locks l USING (pid) JOIN pg_class c ON c.oid = l.relation
	WHERE NOT w.granted AND c.relnamespace = current_schema()::regnamespace)`).Scan(&waits); err != nil {
		t.Error(err)
	}
	return waits
}

// intrude makes a record without the lock of its key, as somebody might by hand.
func intrude(t *testing.T, tx pgx.Tx, key dedupstore.Key) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), `INSERT INTO oncemill_dedup (id, fence, first_at, expires_at, clean_at, attempts,
	returned, state, owner, key, print, trace) SELECT $1, 1, t, t, t, 1, 0, 'running', 'nobody', $2, '', ''
FROM now() AS t`, idOf(key.String()), key.String()); err != nil {
		t.Fatal(err)
	}
}

// TestClaim_FencesGrowWhateverAClaimHasWaitedFor has a batch that waits with its first key for somebody who gives up,
// while another owner has the second key, whose record is forgotten.
func TestClaim_FencesGrowWhateverAClaimHasWaitedFor(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			s := newStore(t, pool, Config{})
			first, second := request("1"), request("2")
			if bytes.Compare(idOf(first.Key.String()), idOf(second.Key.String())) > 0 {
				first, second = second, first
			}
			tx := begin(t, pool, pgx.ReadCommitted)
			intrude(t, tx, first.Key)
			var results []dedupstore.ClaimResult
			var group sync.WaitGroup
			group.Go(func() { results = s.Claim(t.Context(), []dedupstore.Request{first, second}) })
			until(t, "the batch", func() bool { return waitsForALock(t, pool) })
			other := runOf(t, s, second.Key.ID)
			mustExec(t, pool, `DELETE FROM oncemill_dedup WHERE id = $1`, idOf(second.Key.String()))
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			group.Wait()
			if r := results[1]; r.Err != nil || r.Answer.Status == dedupstore.AcquiredRun &&
				r.Answer.Claim.Fence <= other.Fence {
				t.Errorf("fence %d was granted after %d, %v", r.Answer.Claim.Fence, other.Fence, r.Err)
			}
		})
	}
}

// TestClaim_WhoIsCutOffHoldsNobodyUp has claims of a client that the server hears no more of between two statements of
// a batch: their rows stay locked until it notices.
func TestClaim_WhoIsCutOffHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	tx := begin(t, pool, pgx.ReadCommitted)
	for _, id := range []string{"1", "2"} {
		key := request(id).Key.String()
		if _, err := tx.Exec(t.Context(), s.sql.fresh, idOf(key), key, rand.Text(), interval(sqlstore.Micros(long)),
			interval(sqlstore.Micros(long)), interval(sqlstore.Micros(long)), "", "", ""); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for round := range 2 {
		a, err := dedupstore.ClaimOne(ctx, s, request("1"))
		if err != nil || a.Status != dedupstore.Busy {
			t.Errorf("a twin was answered %q, %v, want busy", a.Status, err)
		}
		neighbour := fmt.Sprint("neighbour-", round)
		results := s.Claim(ctx, []dedupstore.Request{request("1"), request(neighbour), request("2")})
		for i, want := range []dedupstore.Status{dedupstore.Busy, dedupstore.AcquiredRun, dedupstore.Busy} {
			if r := results[i]; r.Err != nil || r.Answer.Status != want {
				t.Errorf("claim %d of a batch was answered %q, %v, want %s", i, r.Answer.Status, r.Err, want)
			}
		}
	}
}

// TestClaim_TwinsDoNotWaitForLocks looks at the moment between settlement and commit, which a slow disk makes long.
func TestClaim_TwinsDoNotWaitForLocks(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for name, r := range map[string]dedupstore.Request{"live": request("live"), "expired": brief("expired")} {
		c := claim(t, s.Inbox(), r, dedupstore.AcquiredRun).Claim
		lasts(60 * time.Millisecond)
		tx := begin(t, pool, pgx.ReadCommitted)
		if _, err := tx.Exec(t.Context(), s.sql.finish,
			finishArgs("", dedupstore.Running, c, success)...); err != nil {
			t.Fatal(err)
		}
		best := time.Hour
		for range 20 {
			start := time.Now()
			a := ask(t, s, request(name))
			best = min(best, time.Since(start))
			if a.Status != dedupstore.Busy {
				t.Fatalf("%s: a twin was answered %s, want busy", name, a.Status)
			}
		}
		if best > 50*time.Millisecond {
			t.Errorf("%s: twins were answered after %v at best, want 50 ms at most", name, best)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := beat(ctx, s, c, long); !errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("%s: a heartbeat beside the commit returned %v, want the end of its context", name, err)
		}
		cancel()
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		claim(t, s, request(name), dedupstore.Done)
	}
}

func TestInbox_HandlersThatEndTheTransactionGetALoudError(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for name, end := range map[string]string{
		"commit": `COMMIT`, "rollback": `ROLLBACK`, "another": `COMMIT; BEGIN`, "chained": `COMMIT AND CHAIN`,
		"back": `ROLLBACK; BEGIN`,
	} {
		for form, of := range map[string]func(*Store) (dedupstore.Transactor, func(context.Context) handle){
			"pgx": func(s *Store) (dedupstore.Transactor, func(context.Context) handle) { return s.Inbox(), onPgx },
			"sql": func(s *Store) (dedupstore.Transactor, func(context.Context) handle) { return s.InboxSQL(), onSQL },
		} {
			var log bytes.Buffer
			s := newStore(t, pool, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			inbox, on := of(s)
			r := request(name + form)
			c := claim(t, inbox, r, dedupstore.AcquiredRun).Claim
			err := dedupstore.InTxOne(t.Context(), inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				return success, on(ctx).exec(ctx, end)
			})
			if !errors.Is(err, ErrTxEnded) {
				t.Errorf("%s, %s: the run returned %v, want ErrTxEnded", name, form, err)
			}
			if n := strings.Count(log.String(), "msg=\"dedupstore: the inbox's transaction ended"); n != 1 {
				t.Errorf("%s, %s: the log says so %d times, want once: %q", name, form, n, log.String())
			}
			if again := claim(t, inbox, r, dedupstore.AcquiredRun).Claim; again != c {
				t.Errorf("%s, %s: the record changed: %+v, want %+v", name, form, again, c)
			}
		}
	}
	until(t, "all connections to be given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
}

// TestInbox_AHandlerThatCommitsAndFailsIsNotRunAgain has handlers that end the transaction by themselves, and then
// return an error: what they committed must not be made once more.
func TestInbox_AHandlerThatCommitsAndFailsIsNotRunAgain(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	conflict := &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: codeSerialization}
	exec := func(query string) func(context.Context, handle) error {
		return func(ctx context.Context, h handle) error { return h.exec(ctx, query) }
	}
	for name, one := range map[string]struct {
		sql  bool
		end  func(context.Context, handle) error
		fail error
	}{
		"pgx": {false, exec(`COMMIT`), errors.New("no")},
		"sql": {true, func(ctx context.Context, _ handle) error { return SQLTx(ctx).Commit() },
			errors.New("no")},
		"sql, by statement": {true, exec(`COMMIT`), errors.New("no")},
		"pgx, another":      {false, exec(`COMMIT; BEGIN`), errors.New("no")},
		"pgx, chained":      {false, exec(`COMMIT AND CHAIN`), errors.New("no")},
		"sql, another":      {true, exec(`COMMIT; BEGIN`), errors.New("no")},
		// another claim, such as of a message that it handled inside
		"sql, claim lost": {true, exec(`COMMIT`), dedupstore.ErrClaimLost},
		"pgx, conflict":   {false, exec(`COMMIT`), conflict},
		"sql, conflict":   {true, func(ctx context.Context, _ handle) error { return SQLTx(ctx).Commit() }, conflict},
	} {
		var log bytes.Buffer
		s := newStore(t, pool, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		inbox, on := s.Inbox(), onPgx
		if one.sql {
			inbox, on = s.InboxSQL(), onSQL
		}
		g := newGuard(t, inbox, 30*time.Second)
		for range 2 {
			res, err := g.Run(t.Context(), callOf(name), func(ctx context.Context) (dedupstore.Outcome, error) {
				h := on(ctx)
				return dedupstore.Outcome{}, errors.Join(h.exec(ctx, insertEffect, name), one.end(ctx, h), one.fail)
			})
			if err != nil || res.Outcome.Kind != dedupstore.Unknown ||
				!strings.Contains(res.Outcome.Reason, one.fail.Error()) {
				t.Errorf("%s: the run ended as %+v, %v, want an unknown outcome with the handler's error", name,
					res.Outcome, err)
			}
		}
		wantEffects(t, pool, name, 1)
		if !strings.Contains(log.String(), "the inbox's transaction ended before its run;") {
			t.Errorf("%s: the log is %q", name, log.String())
		}
	}
}

// TestInbox_WhatAHandlerRolledBackIsAnOrdinaryFailure is for handlers that defer tx.Rollback, as those of database/sql
// do, and for commits that the server refused.
func TestInbox_WhatAHandlerRolledBackIsAnOrdinaryFailure(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	var log bytes.Buffer
	s := newStore(t, pool, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	mustExec(t, pool, `CREATE TABLE odd (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	mustExec(t, pool, `INSERT INTO odd VALUES (1)`)
	for name, end := range map[string]func(context.Context) error{
		"rollback": func(ctx context.Context) error { return SQLTx(ctx).Rollback() },
		"aborted": func(ctx context.Context) error {
			_, _ = SQLTx(ctx).ExecContext(ctx, `SELECT 1/0`)
			return SQLTx(ctx).Commit()
		},
		"refused": func(ctx context.Context) error {
			_, err := SQLTx(ctx).ExecContext(ctx, `INSERT INTO odd VALUES (1)`)
			return errors.Join(err, SQLTx(ctx).Commit())
		},
	} {
		c := runOf(t, s.InboxSQL(), name)
		boom := errors.New("no")
		err := dedupstore.InTxOne(t.Context(), s.InboxSQL(), c,
			func(ctx context.Context) (dedupstore.Settlement, error) {
				return nil, errors.Join(onSQL(ctx).exec(ctx, insertEffect, name), end(ctx), boom)
			})
		if !errors.Is(err, boom) || errors.Is(err, dedupstore.ErrEnded) {
			t.Errorf("%s: the run returned %v, want the handler's error alone", name, err)
		}
		wantEffects(t, pool, name, 0)
	}
	if log.Len() > 0 {
		t.Errorf("the log says %q", log.String())
	}
}

func TestTx_IsEndedByTheInboxOnly(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	c := runOf(t, s.Inbox(), "1")
	var kept, savepoint pgx.Tx
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), c,
		func(ctx context.Context) (_ dedupstore.Settlement, err error) {
			kept = Tx(ctx)
			if err := kept.Commit(ctx); !errors.Is(err, ErrInboxCommits) {
				t.Errorf("Commit returned %v, want ErrInboxCommits", err)
			}
			if err := kept.Rollback(ctx); !errors.Is(err, ErrInboxCommits) {
				t.Errorf("Rollback returned %v, want ErrInboxCommits", err)
			}
			// A failure in a savepoint does not fail the transaction.
			if err := pgx.BeginFunc(ctx, kept, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO missing VALUES (1)`)
				return err
			}); codeOf(err) != codeUndefinedTable {
				t.Errorf("the savepoint returned %v", err)
			}
			if savepoint, err = kept.Begin(ctx); err != nil {
				return nil, err
			}
			return success, effect(ctx, c)
		})
	if err != nil {
		t.Fatal(err)
	}
	wantEffects(t, pool, "1", 1)
	ctx := t.Context()
	for name, tx := range map[string]pgx.Tx{"transaction": kept, "savepoint": savepoint} {
		_, exec := tx.Exec(ctx, `INSERT INTO effects VALUES ('late', 1)`)
		_, query := tx.Query(ctx, `INSERT INTO effects VALUES ('late', 1)`)
		_, begun := tx.Begin(ctx)
		_, copied := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"id"}, pgx.CopyFromRows(nil))
		_, prepared := tx.Prepare(ctx, "late", `SELECT 1`)
		for what, err := range map[string]error{
			"Exec": exec, "Query": query, "Begin": begun, "CopyFrom": copied, "Prepare": prepared,
			"QueryRow":  tx.QueryRow(ctx, `SELECT 1`).Scan(new(int)),
			"SendBatch": tx.SendBatch(ctx, &pgx.Batch{}).Close(),
		} {
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s of the %s after the run returned %v, want ErrTxClosed", what, name, err)
			}
		}
	}
	wantEffects(t, pool, "late", 0)
}

func TestTx_PanicsOutsideARun(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{})
	panics := func(f func()) (said string) {
		defer func() {
			if v := recover(); v != nil {
				said = fmt.Sprint(v)
			}
		}()
		f()
		return "nothing"
	}
	if said := panics(func() { Tx(t.Context()) }); !strings.Contains(said, "outside a run of Store.Inbox") {
		t.Errorf("Tx says %q", said)
	}
	for id, inbox := range map[string]dedupstore.Transactor{"pgx": s.Inbox(), "sql": s.InboxSQL()} {
		c := runOf(t, inbox, id)
		if err := dedupstore.InTxOne(t.Context(), inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
			if id == "sql" {
				if said := panics(func() { Tx(ctx) }); !strings.Contains(said, "over Store.Inbox()") {
					t.Errorf("Tx in the other form says %q", said)
				}
			} else if said := panics(func() { SQLTx(ctx) }); !strings.Contains(said, "over Store.InboxSQL()") {
				t.Errorf("SQLTx in the other form says %q", said)
			}
			return success, nil
		}); err != nil {
			t.Error(err)
		}
	}
}

func TestInbox_PanicsRollBackAndCountAsFailures(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	_, err := newGuard(t, s.Inbox(), long).Run(t.Context(), callOf("1"),
		func(ctx context.Context) (dedupstore.Outcome, error) {
			Tx(ctx).Exec(ctx, `INSERT INTO effects VALUES ('1', 1)`)
			panic("on purpose")
		})
	if retry, ok := answertest.Is(err, oncemill.StatusRetry); !ok || retry.Attempt != 1 || retry.Uncounted {
		t.Errorf("the run returned %v, want a retry that counts", err)
	}
	wantEffects(t, pool, "1", 0)
	until(t, "all connections to be given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
}

func TestInbox_PermanentFailuresAreRecordedAndLeaveNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	g := newGuard(t, s.Inbox(), long)
	for range 2 {
		res, err := g.Run(t.Context(), callOf("1"), func(ctx context.Context) (dedupstore.Outcome, error) {
			_, err := Tx(ctx).Exec(ctx, `INSERT INTO effects VALUES ('1', 1)`)
			return dedupstore.Outcome{Result: []byte("details")},
				errors.Join(err, oncemill.Permanent(errors.New("card refused")))
		})
		if err != nil || res.Outcome.Kind != dedupstore.Failed || string(res.Outcome.Result) != "details" ||
			res.Outcome.Reason == "" {
			t.Errorf("the run ended with %+v, %v", res.Outcome, err)
		}
	}
	wantEffects(t, pool, "1", 0)
}

func TestInbox_ZombiesRollBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		s := newStore(t, pool, Config{Isolation: level})
		id := string(level)
		c := claim(t, s.Inbox(), brief(id), dedupstore.AcquiredRun).Claim
		err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			if err := effect(ctx, c); err != nil {
				return nil, err
			}
			lasts(60 * time.Millisecond)
			next := claim(t, s.Inbox(), request(id), dedupstore.AcquiredRun).Claim
			return success, dedupstore.InTxOne(t.Context(), s.Inbox(), next, paying(next))
		})
		if !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("%s: the zombie's run returned %v, want ErrClaimLost", level, err)
		}
		wantEffects(t, pool, id, 1)
	}
}

// TestInbox_ConflictsAreRepeated lets transactions meet for which PostgreSQL has to refuse one.
func TestInbox_ConflictsAreRepeated(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	mustExec(t, pool, `CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL)`)
	for _, tc := range []struct {
		name      string
		level     pgx.TxIsoLevel
		form      func(*Store) dedupstore.Transactor
		on        func(context.Context) handle
		deadlocks bool
	}{
		{"serialization", pgx.RepeatableRead, (*Store).Inbox, onPgx, false},
		{"serialization-sql", pgx.Serializable, (*Store).InboxSQL, onSQL, false},
		{"deadlock", pgx.ReadCommitted, (*Store).Inbox, onPgx, true},
		{"deadlock-sql", "", (*Store).InboxSQL, onSQL, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mustExec(t, pool, `TRUNCATE accounts`)
			mustExec(t, pool, `INSERT INTO accounts VALUES (1, 0), (2, 0)`)
			inbox := tc.form(newStore(t, pool, Config{Isolation: tc.level}))
			var met sync.WaitGroup // both have begun
			met.Add(2)
			var calls [2]int
			var both sync.WaitGroup
			for i := range 2 {
				c := runOf(t, inbox, tc.name+string(rune('a'+i)))
				both.Go(func() {
					err := dedupstore.InTxOne(t.Context(), inbox, c,
						func(ctx context.Context) (dedupstore.Settlement, error) {
							calls[i]++
							accounts := []int{1, 1}
							if tc.deadlocks {
								accounts = []int{1 + i, 2 - i}
							}
							h := tc.on(ctx)
							var balance int
							if err := h.scan(ctx, `SELECT sum(balance) FROM accounts`, &balance); err != nil {
								return nil, err
							}
							if !tc.deadlocks && calls[i] == 1 {
								met.Done()
								met.Wait()
							}
							for n, account := range accounts {
								if err := h.exec(ctx, `UPDATE accounts SET balance = balance + 1 WHERE id = $1`,
									account); err != nil {
									return nil, errors.Join(errors.New("charge"), err)
								}
								if tc.deadlocks && calls[i] == 1 && n == 0 {
									met.Done()
									met.Wait()
								}
							}
							return success, nil
						})
					if err != nil {
						t.Errorf("run %d: %v", i, err)
					}
				})
			}
			both.Wait()
			if calls[0]+calls[1] < 3 {
				t.Errorf("the handlers were called %v times: nothing was refused", calls)
			}
			var sum int
			if err := pool.QueryRow(t.Context(), `SELECT sum(balance) FROM accounts`).Scan(&sum); err != nil ||
				sum != 4 {
				t.Errorf("the accounts have %d, %v, want 4", sum, err)
			}
			for i := range 2 {
				a := claim(t, inbox, request(tc.name+string(rune('a'+i))), dedupstore.Done)
				if a.Outcome.Kind != dedupstore.Succeeded {
					t.Errorf("the outcome is %+v", a.Outcome)
				}
			}
		})
	}
}

func TestInbox_ConflictsThatNeverEndAreNoFailures(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{})
	calls := 0
	_, err := newGuard(t, s.Inbox(), long).Run(t.Context(), callOf("1"),
		func(context.Context) (dedupstore.Outcome, error) {
			calls++
			return dedupstore.Outcome{}, &pgconn.PgError{Code: codeDeadlock}
		})
	if retry, ok := answertest.Is(err, oncemill.StatusRetry); !ok || !retry.Uncounted {
		t.Errorf("the run returned %v, want a retry that does not count", err)
	}
	if calls != sqlstore.Tries {
		t.Errorf("the handler was called %d times, want %d", calls, sqlstore.Tries)
	}
}

func TestInbox_OutboxesJoin(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	box, err := pgoutbox.New(pool, pgoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows := func() (n int) {
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM oncemill_outbox`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i, inbox := range []dedupstore.Transactor{s.Inbox(), s.InboxSQL()} {
		for _, end := range []error{errors.New("no"), nil} {
			c := runOf(t, inbox, string(rune('a'+i))+map[bool]string{true: "commits"}[end == nil])
			err := dedupstore.InTxOne(t.Context(), inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				err := box.Publish(ctx, producer.Message{ID: c.Key.ID, Topic: "receipts", Payload: []byte("12.50")})
				if n := rows(); n != i {
					t.Errorf("%d rows are committed before the commit, want %d", n, i)
				}
				return success, errors.Join(err, end)
			})
			if !errors.Is(err, end) {
				t.Errorf("the run returned %v, want %v", err, end)
			}
		}
		if n := rows(); n != i+1 {
			t.Errorf("%d rows are committed, want %d", n, i+1)
		}
	}
}

// TestInbox_RowsThatAHandlerLeftOpenAreNamed has handlers that forget to close the rows of a query. Nobody is to look
// for what is wrong with the connection.
func TestInbox_RowsThatAHandlerLeftOpenAreNamed(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for name, one := range map[string]struct {
		inbox dedupstore.Transactor
		query func(ctx context.Context, query string) error
	}{
		"pgx": {s.Inbox(), func(ctx context.Context, query string) error {
			rows, err := Tx(ctx).Query(ctx, query)
			if err == nil {
				rows.Next()
			}
			return err
		}},
		"sql": {s.InboxSQL(), func(ctx context.Context, query string) error {
			rows, err := SQLTx(ctx).QueryContext(ctx, query) //nolint:rowserrcheck // that is what is tested
			if err == nil {
				rows.Next()
			}
			return err
		}},
	} {
		for size, rows := range map[string]string{"few": "1", "many": "100000"} {
			c := runOf(t, s, name+size)
			err := dedupstore.InTxOne(t.Context(), one.inbox, c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					return success, one.query(ctx, `SELECT generate_series(1, `+rows+`)`)
				})
			if !errors.Is(err, errBusy) {
				t.Errorf("%s, %s: the run returned %v, want %v", name, size, err, errBusy)
			}
			if again := claim(t, s, request(name+size), dedupstore.Busy); again.Wait == 0 {
				t.Errorf("%s, %s: the claim is not held any more", name, size)
			}
		}
	}
	until(t, "connections that are given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
}

// TestInbox_AStatementThatAHandlerLeftUnderWayHoldsNoRunUp has a handler that returns while a goroutine of it still
// waits for the database. A worker that is to end would wait for that, too.
func TestInbox_AStatementThatAHandlerLeftUnderWayHoldsNoRunUp(t *testing.T) {
	t.Parallel()
	given := errors.New("it was given up")
	for name, tc := range map[string]struct {
		returns error
		want    error
		beats   bool // the inbox waits for the connection, too
	}{
		"fails": {given, given, false}, "succeeds": {nil, errLost, false},
		"fails after a beat": {given, given, true}, "succeeds after a beat": {nil, errLost, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			inbox := newStore(t, pool, Config{}).InboxSQL()
			r := request("1")
			r.Lease = 2 * time.Second // bounds the settlement
			c := claim(t, inbox, r, dedupstore.AcquiredRun).Claim
			var left sync.WaitGroup
			defer left.Wait()
			began := time.Now()
			err := dedupstore.InTxOne(t.Context(), inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				tx := SQLTx(ctx)
				var pid int
				if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
					return nil, err
				}
				left.Go(func() {
					if _, err := tx.ExecContext(context.WithoutCancel(ctx), `SELECT pg_sleep(60)`); err == nil {
						t.Error("the statement that was left has succeeded")
					}
				})
				until(t, "the statement", func() (runs bool) {
					err := pool.QueryRow(t.Context(), `
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active')`, pid).Scan(&runs)
					return err == nil && runs
				})
				if tc.beats {
					until(t, "a beat", func() bool { return time.Since(began) > leastSilence/2 })
				}
				return success, tc.returns
			})
			if !errors.Is(err, tc.want) {
				t.Errorf("the run returned %v, want %v", err, tc.want)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("the run took %v", took)
			}
			wantEffects(t, pool, "1", 0)
			until(t, "the connection that is given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
		})
	}
}

// TestInbox_WhoCommitsAndLeavesRowsOpenIsNotRunAgain has handlers that end the transaction by themselves, and then
// leave a connection that cannot be used: what they committed must not be made once more.
func TestInbox_WhoCommitsAndLeavesRowsOpenIsNotRunAgain(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	const rows, lost = `SELECT generate_series(1, 100000)`, `SELECT pg_terminate_backend(pg_backend_pid())`
	for name, one := range map[string]struct {
		inbox dedupstore.Transactor
		leave func(ctx context.Context) error
	}{
		"pgx, rows": {s.Inbox(), func(ctx context.Context) error {
			_, err := Tx(ctx).Query(ctx, rows)
			return err
		}},
		"sql, rows": {s.InboxSQL(), func(ctx context.Context) error {
			_, err := SQLTx(ctx).QueryContext(ctx, rows) //nolint:rowserrcheck // that is what is tested
			return err
		}},
		"pgx, lost": {s.Inbox(), func(ctx context.Context) error {
			_, _ = Tx(ctx).Exec(ctx, lost)
			return nil
		}},
		"sql, lost": {s.InboxSQL(), func(ctx context.Context) error {
			_, _ = SQLTx(ctx).ExecContext(ctx, lost)
			return nil
		}},
	} {
		c := runOf(t, s, name)
		err := dedupstore.InTxOne(t.Context(), one.inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
			on := onPgx
			if strings.HasPrefix(name, "sql") {
				on = onSQL
			}
			if err := on(ctx).exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, c.Key.ID, int64(c.Fence)); err != nil {
				return nil, err
			}
			if err := on(ctx).exec(ctx, `COMMIT`); err != nil {
				return nil, err
			}
			return success, one.leave(ctx)
		})
		if !errors.Is(err, ErrTxEnded) {
			t.Errorf("%s: the run returned %v, want ErrTxEnded", name, err)
		}
		wantEffects(t, pool, name, 1)
	}
	until(t, "connections that are given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
}

// TestInbox_ACutThatComesLateIsNotOfAnother has the time of a transaction end just when it is over: the pool may have
// given its connection to somebody else.
func TestInbox_ACutThatComesLateIsNotOfAnother(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for name, late := range map[string]bool{"before the end": false, "after the end": true} {
		tx, err := sqlstore.NewTransaction([]dedupstore.TxRun{{Claim: runOf(t, s, name)}})
		if err != nil {
			t.Fatal(err)
		}
		begun, err := s.beginSQL(t.Context(), s.inboxSQL.newRun(tx))
		if err != nil {
			t.Fatal(err)
		}
		q := begun.(*sqlSession)
		if !late {
			q.cut()
		}
		q.end(t.Context())
		another, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if late {
			if another.Conn() != q.conn {
				t.Fatal("the pool has another connection to give")
			}
			q.cut()
		}
		if _, err := another.Exec(t.Context(), `SELECT 1`); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		another.Release()
	}
}
