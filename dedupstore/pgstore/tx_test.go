package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// inInbox runs a handler for a new claim.
func inInbox(t *testing.T, s *Store, id string, handler func(ctx context.Context, tx pgx.Tx) error) error {
	t.Helper()
	c := runOf(t, s.Inbox(), id)
	return dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		return success, handler(ctx, Tx(ctx))
	})
}

// TestTx_EachMethodWorksInTheTransaction: what it does is committed or rolled back with the run.
func TestTx_EachMethodWorksInTheTransaction(t *testing.T) {
	t.Parallel()
	methods := map[string]func(ctx context.Context, tx pgx.Tx, id string) error{
		"exec": func(ctx context.Context, tx pgx.Tx, id string) error {
			tag, err := tx.Exec(ctx, insertEffect, id)
			if err == nil && tag.String() != "INSERT 0 1" {
				err = fmt.Errorf("the tag is %q", tag)
			}
			return err
		},
		"query": func(ctx context.Context, tx pgx.Tx, id string) error {
			rows, err := tx.Query(ctx, insertEffect, id)
			if err == nil {
				rows.Close()
				err = rows.Err()
			}
			return err
		},
		"row": func(ctx context.Context, tx pgx.Tx, id string) error {
			return tx.QueryRow(ctx, insertEffect+` RETURNING id`, id).Scan(&id)
		},
		"batch": func(ctx context.Context, tx pgx.Tx, id string) error {
			var b pgx.Batch
			b.Queue(insertEffect, id)
			return tx.SendBatch(ctx, &b).Close()
		},
		"copy": func(ctx context.Context, tx pgx.Tx, id string) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"id", "run"},
				pgx.CopyFromRows([][]any{{id, int64(1)}}))
			return err
		},
		"prepare": func(ctx context.Context, tx pgx.Tx, id string) error {
			if _, err := tx.Prepare(ctx, "effect", insertEffect); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "effect", id)
			return err
		},
		"savepoint": func(ctx context.Context, tx pgx.Tx, id string) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insertEffect, id)
				return err
			})
		},
		"connection": func(ctx context.Context, tx pgx.Tx, id string) error {
			_, err := tx.Conn().Exec(ctx, insertEffect, id)
			return err
		},
		"large object": func(ctx context.Context, tx pgx.Tx, id string) error {
			objects := tx.LargeObjects()
			oid, err := objects.Create(ctx, 0)
			if err == nil {
				_, err = tx.Exec(ctx, insertEffect, id)
			}
			if err == nil {
				err = objects.Unlink(ctx, oid)
			}
			return err
		},
	}
	pool := newPool(t)
	for _, level := range []pgx.TxIsoLevel{"", pgx.Serializable} {
		s := newStore(t, pool, Config{Isolation: level})
		for name, method := range methods {
			for _, succeeds := range []bool{true, false} {
				id := fmt.Sprint(name, level, succeeds)
				no := errors.New("no")
				err := inInbox(t, s, id, func(ctx context.Context, tx pgx.Tx) error {
					if err := method(ctx, tx, id); err != nil {
						t.Errorf("%s: %v", id, err)
					}
					var marked, isolation string
					const query = `SELECT current_setting('oncemill.tx'), current_setting('transaction_isolation')`
					if err := tx.QueryRow(ctx, query).Scan(&marked, &isolation); err != nil {
						return err
					}
					if want := string(level); marked != "inbox" || want != "" && isolation != want {
						t.Errorf("%s: the mark is %q, the isolation %q", id, marked, isolation)
					}
					if !succeeds {
						return no
					}
					return nil
				})
				if !succeeds {
					if !errors.Is(err, no) {
						t.Errorf("%s: the run returned %v, want the handler's error", id, err)
					}
					wantEffects(t, pool, id, 0)
					continue
				}
				if err != nil {
					t.Errorf("%s: the run returned %v", id, err)
				}
				wantEffects(t, pool, id, 1)
				claim(t, s, request(id), dedupstore.Done)
			}
		}
	}
}

// TestInbox_AMessageTakesFourRoundTrips once all statements are prepared.
func TestInbox_AMessageTakesFourRoundTrips(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct, func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.DefaultQueryExecMode = 2, pgx.QueryExecModeCacheStatement
	})
	s := unmigrated(t, pool, Config{})
	effect := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insertEffect, "1")
		return err
	}
	for n := range 4 { // both connections prepare all statements
		taken, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n%2 == 0 {
			other, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			taken.Release()
			taken = other
		}
		if err := inInbox(t, s, fmt.Sprint(n), effect); err != nil {
			t.Fatal(err)
		}
		taken.Release()
	}
	var requests atomic.Int64
	p.inject(func(int, string) fault {
		requests.Add(1)
		return faithful
	})
	if err := inInbox(t, s, "last", effect); err != nil {
		t.Fatal(err)
	}
	if n := requests.Load(); n != 4 {
		t.Errorf("a message took %d round trips, want 4: its claim, BEGIN, the handler's statement, settlement with "+
			"COMMIT", n)
	}
}

// TestTx_WhatAHandlerLeavesUnderWayReachesNoOtherRun: a statement that begins as the run ends must not be made on the
// connection when that is another's. And pgx may panic where a pool closes a connection under a statement.
func TestTx_WhatAHandlerLeavesUnderWayReachesNoOtherRun(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	inbox := s.Inbox()
	var workers, left sync.WaitGroup
	var failed sync.Map
	for worker := range 10 {
		workers.Go(func() {
			for n := range full(2000, 200) {
				id := fmt.Sprintf("%d-%d", worker, n)
				r := request(id)
				a, err := dedupstore.ClaimOne(t.Context(), inbox, r)
				for err == nil && a.Status == dedupstore.Busy && a.Fence == 0 { // beside a slow disk
					a, err = dedupstore.ClaimOne(t.Context(), inbox, r)
				}
				if err != nil || a.Status != dedupstore.AcquiredRun {
					t.Errorf("%s: %+v, %v", id, a, err)
					return
				}
				err = dedupstore.InTxOne(t.Context(), inbox, a.Claim,
					func(ctx context.Context) (dedupstore.Settlement, error) {
						tx := Tx(ctx)
						if n%2 == 0 {
							if _, err := tx.Exec(ctx, insertEffect, id); err != nil {
								t.Error(err)
							}
						}
						left.Go(func() {
							for range 3 {
								_, _ = tx.Exec(ctx, insertEffect, id)
							}
						})
						if n%3 == 0 {
							return nil, errors.New("no funds")
						}
						return success, nil
					})
				if err != nil {
					failed.Store(id, true)
				}
			}
		})
	}
	workers.Wait()
	left.Wait()
	until(t, "all connections", func() bool { return pool.Stat().AcquiredConns() == 0 })
	rows, err := pool.Query(t.Context(), `SELECT DISTINCT id FROM effects`)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if _, ok := failed.Load(id); ok {
			t.Errorf("%s failed, and has effects", id)
		}
	}
}

// TestTx_WhoEndsTheTransactionIsFoundOutAlsoWithACallUnderWay: what such a handler committed has no outcome, and must
// not be done again.
func TestTx_WhoEndsTheTransactionIsFoundOutAlsoWithACallUnderWay(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	inbox := newStore(t, pool, Config{}).Inbox()
	for id, end := range map[string]string{"1": "COMMIT", "2": "SAVEPOINT s"} {
		var left sync.WaitGroup
		err := dedupstore.InTxOne(t.Context(), inbox, claim(t, inbox, request(id), dedupstore.AcquiredRun).Claim,
			func(ctx context.Context) (dedupstore.Settlement, error) {
				tx := Tx(ctx)
				for _, query := range []string{`INSERT INTO effects VALUES ('` + id + `', 1)`, end} {
					if _, err := tx.Exec(ctx, query); err != nil {
						t.Error(err)
					}
				}
				left.Go(func() { _, _ = tx.Exec(ctx, `SELECT pg_sleep(30), $1::text`, id) })
				until(t, "the statement", func() bool {
					var n int
					err := pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
WHERE wait_event = 'PgSleep' AND query LIKE 'SELECT pg_sleep(30), $1%'`).Scan(&n)
					return err == nil && n > 0
				})
				return nil, errors.New("no funds")
			})
		left.Wait()
		if want := end == "COMMIT"; errors.Is(err, ErrTxEnded) != want {
			t.Errorf("after %s: %v, want ErrTxEnded: %v", end, err, want)
		}
		until(t, "the connection", func() bool { return pool.Stat().AcquiredConns() == 0 })
	}
}

// TestInbox_AStatementThatAHandlerLeftUnderWay fails the run, and holds nothing after it: neither a connection of the
// pool nor a transaction that nobody ends.
func TestInbox_AStatementThatAHandlerLeftUnderWay(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	given := errors.New("it was given up")
	for _, returns := range []error{nil, given} {
		id := fmt.Sprint("returns ", returns)
		lock := begin(t, pool, pgx.ReadCommitted)
		if _, err := lock.Exec(t.Context(), `LOCK TABLE effects`); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		err := inInbox(t, s, id, func(ctx context.Context, tx pgx.Tx) error {
			go func() {
				_, err := tx.Exec(context.WithoutCancel(ctx), insertEffect, id)
				ended <- err
			}()
			until(t, "a statement that waits", func() bool {
				var waits bool
				err := lock.QueryRow(ctx, `
SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'effects'::regclass AND NOT granted)`).Scan(&waits)
				return err != nil || waits
			})
			return returns
		})
		if want := cmp.Or(returns, errBusy); !errors.Is(err, want) {
			t.Errorf("%s: the run returned %v, want %v", id, err, want)
		}
		if err := lock.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-ended; err == nil {
			t.Errorf("%s: the statement succeeded after the run", id)
		}
		until(t, "connections that are given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
		wantEffects(t, pool, id, 0)
	}
}

// TestInbox_ACopyWithoutEndThatAHandlerLeftUnderWay holds up neither the run nor its connection: pgx waits for the
// copy's source, which may never return, also when the connection is closed.
func TestInbox_ACopyWithoutEndThatAHandlerLeftUnderWay(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for _, returns := range []error{nil, errors.New("it was given up")} {
		asked, release, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- inInbox(t, s, fmt.Sprint("returns ", returns), func(ctx context.Context, tx pgx.Tx) error {
				go func() {
					defer close(left)
					_, _ = tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"id"}, pgx.CopyFromFunc(
						func() ([]any, error) {
							close(asked)
							<-release
							return nil, nil
						}))
				}()
				<-asked
				return returns
			})
		}()
		select {
		case err := <-ended:
			if want := cmp.Or(returns, errBusy); !errors.Is(err, want) {
				t.Errorf("the run returned %v, want %v", err, want)
			}
		case <-time.After(time.Minute):
			t.Error("the run does not return")
		}
		until(t, "connections that are given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
		close(release)
		<-left
	}
}

// TestTx_AStatementThatIsGivenUpIsTheHandlersFailure and nothing that the handler does afterwards is committed without
// it.
func TestTx_AStatementThatIsGivenUpIsTheHandlersFailure(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for name, swallowed := range map[string]bool{"told": false, "swallowed": true} {
		calls := 0
		err := inInbox(t, s, name, func(ctx context.Context, tx pgx.Tx) error {
			calls++
			bounded, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(bounded, `SELECT pg_sleep($1)`, 60)
			if _, second := tx.Exec(ctx, insertEffect, name); second == nil {
				t.Errorf("%s: a second statement succeeded", name)
			}
			if swallowed {
				return nil
			}
			return err
		})
		if err == nil || !swallowed && !errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, dedupstore.ErrEnded) || calls != 1 {
			t.Errorf("%s: the run returned %v after %d calls", name, err, calls)
		}
		wantEffects(t, pool, name, 0)
	}
}

// TestInbox_ATransactionThatCannotBeginCountsNoAttempt, and calls no handler: at most once, it must not cost the only
// run.
func TestInbox_ATransactionThatCannotBeginCountsNoAttempt(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct)
	s := unmigrated(t, pool, Config{})
	for name, policy := range map[string]oncemill.Policy{"retake": {MaxAttempts: 1},
		"at most once": oncemill.Irreversible()} {
		policy.Logger = slog.New(slog.DiscardHandler)
		g, err := oncemill.NewGuard(s.Inbox(), policy)
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		handler := func(ctx context.Context) (dedupstore.Outcome, error) {
			calls++
			_, err := Tx(ctx).Exec(ctx, insertEffect, name)
			return dedupstore.Outcome{}, err
		}
		p.inject(func(_ int, request string) fault {
			if strings.Contains(request, "BEGIN READ WRITE") {
				return cutBefore
			}
			return faithful
		})
		if _, err := g.Run(t.Context(), callOf(name), handler); err == nil || calls != 0 {
			t.Errorf("%s: %v after %d calls, want an error before the handler", name, err, calls)
		}
		p.inject(nil)
		var res oncemill.Result
		for start := time.Now(); calls == 0 && time.Since(start) < time.Minute; lasts(5 * time.Millisecond) {
			res, err = g.Run(t.Context(), callOf(name), handler)
		}
		if err != nil || calls != 1 || res.Attempt != 1 {
			t.Errorf("%s: %+v, %v after %d calls, want one that succeeds", name, res, err, calls)
		}
		wantEffects(t, direct, name, 1)
	}
}
