package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
)

// prepared makes the pool's connections prepare their statements, as they do by default: then BEGIN may come with another one.
func prepared(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement }

// inInbox runs a handler for a new claim.
func inInbox(t *testing.T, s *Store, id string, handler func(ctx context.Context, tx pgx.Tx) error) error {
	t.Helper()
	c := runOf(t, s.Inbox(), id)
	return s.Inbox().InTx(t.Context(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		return success, handler(ctx, Tx(ctx))
	})
}

// TestTx_BeginsWithTheFirstStatement has each way to begin: what is done is the transaction's, so that it goes with it.
func TestTx_BeginsWithTheFirstStatement(t *testing.T) {
	t.Parallel()
	begins := map[string]func(ctx context.Context, tx pgx.Tx, id string) error{
		"exec": func(ctx context.Context, tx pgx.Tx, id string) error {
			tag, err := tx.Exec(ctx, insertEffect, id)
			if err == nil && tag.String() != "INSERT 0 1" {
				err = fmt.Errorf("the tag is %q", tag)
			}
			return err
		},
		"mode": func(ctx context.Context, tx pgx.Tx, id string) error {
			_, err := tx.Exec(ctx, insertEffect, pgx.QueryExecModeSimpleProtocol, id)
			return err
		},
		"named": func(ctx context.Context, tx pgx.Tx, id string) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects VALUES (@id, 1)`, pgx.NamedArgs{"id": id})
			return err
		},
		"several": func(ctx context.Context, tx pgx.Tx, id string) error {
			_, err := tx.Exec(ctx, `SELECT 1; INSERT INTO effects VALUES ('`+id+`', 1)`)
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
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"id", "run"}, pgx.CopyFromRows([][]any{{id, int64(1)}}))
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
		"savepoint after exec": func(ctx context.Context, tx pgx.Tx, id string) error {
			if _, err := tx.Exec(ctx, insertEffect, id); err != nil {
				return err
			}
			rolledBack := errors.New("rolled back")
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insertEffect, id)
				return errors.Join(err, rolledBack)
			})
			if errors.Is(err, rolledBack) {
				err = nil
			}
			return err
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
		"context that has ended": func(ctx context.Context, tx pgx.Tx, id string) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_, exec := tx.Exec(ended, insertEffect, id)
			query := tx.QueryRow(ended, insertEffect, id).Scan(&id)
			if !errors.Is(exec, context.Canceled) || !errors.Is(query, context.Canceled) {
				return fmt.Errorf("under a context that has ended: %w, %w", exec, query)
			}
			_, err := tx.Exec(ctx, insertEffect, id)
			return err
		},
	}
	pool := newPool(t, prepared)
	for _, level := range []pgx.TxIsoLevel{"", pgx.Serializable} {
		s := newStore(t, pool, Config{Isolation: level})
		for name, begin := range begins {
			for _, succeeds := range []bool{true, false} {
				id := fmt.Sprint(name, level, succeeds)
				no := errors.New("no")
				err := inInbox(t, s, id, func(ctx context.Context, tx pgx.Tx) error {
					if err := begin(ctx, tx, id); err != nil {
						t.Errorf("%s: %v", id, err)
					}
					var marked, isolation string
					if err := tx.QueryRow(ctx, `SELECT current_setting('oncemill.tx'), current_setting('transaction_isolation')`).Scan(&marked, &isolation); err != nil {
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
	if stat := pool.Stat(); stat.AcquiredConns() != 0 || stat.NewConnsCount() > 4 {
		t.Errorf("%d connections are still in use, of %d that were made: each try to begin that fails costs one", stat.AcquiredConns(), stat.NewConnsCount())
	}
}

func TestInbox_AHandlerWithoutAStatementSettles(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t, prepared), Config{})
	if err := inInbox(t, s, "1", func(context.Context, pgx.Tx) error { return nil }); err != nil {
		t.Error(err)
	}
	claim(t, s, request("1"), dedupstore.Done)
}

// TestTx_TheFirstStatementTakesNoRoundTripMore counts what is sent for a message once all statements are prepared.
func TestTx_TheFirstStatementTakesNoRoundTripMore(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct, prepared, func(c *pgxpool.Config) { c.MaxConns = 2 })
	s := unmigrated(t, pool, Config{})
	effect := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insertEffect, "1")
		return err
	}
	for n := range 4 { // both connections prepare all statements
		held, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n%2 == 0 {
			other, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held.Release()
			held = other
		}
		if err := inInbox(t, s, fmt.Sprint(n), effect); err != nil {
			t.Fatal(err)
		}
		held.Release()
	}
	var requests atomic.Int64
	p.inject(func(int, string) fault {
		requests.Add(1)
		return faithful
	})
	if err := inInbox(t, s, "last", effect); err != nil {
		t.Fatal(err)
	}
	if n := requests.Load(); n != 3 {
		t.Errorf("a message took %d round trips, want 3: its claim, BEGIN with the handler's statement, settlement with COMMIT", n)
	}
}

// TestTx_AFirstStatementThatFailsFailsTheTransaction as each other one does, also where BEGIN was not sent because of it.
func TestTx_AFirstStatementThatFailsFailsTheTransaction(t *testing.T) {
	t.Parallel()
	pool := newPool(t, prepared)
	s := newStore(t, pool, Config{})
	mustExec(t, pool, `CREATE TABLE once (id text PRIMARY KEY)`)
	mustExec(t, pool, `INSERT INTO once VALUES ('1')`)
	for name, first := range map[string]struct{ query, code string }{
		"unprepared": {`INSERT INTO missing VALUES ($1)`, codeUndefinedTable},
		"refused":    {`INSERT INTO once VALUES ($1)`, "23505"},
	} {
		for _, swallowed := range []bool{false, true} {
			err := inInbox(t, s, name+fmt.Sprint(swallowed), func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, first.query, "1")
				if codeOf(err) != first.code {
					t.Errorf("%s: %v, want code %s", name, err, first.code)
				}
				if _, second := tx.Exec(ctx, insertEffect, name); codeOf(second) != codeAborted {
					t.Errorf("%s: a second statement returned %v, want that the transaction is aborted", name, second)
				}
				if swallowed {
					return nil
				}
				return err
			})
			if swallowed && !errors.Is(err, ErrTxAborted) || !swallowed && codeOf(err) != first.code {
				t.Errorf("%s: the run returned %v", name, err)
			}
		}
		wantEffects(t, pool, name, 0)
	}

	// What cannot be sent fails nothing.
	if err := inInbox(t, s, "unsent", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertEffect, struct{}{}); err == nil {
			t.Error("a struct was sent")
		}
		_, err := tx.Exec(ctx, insertEffect, "unsent")
		return err
	}); err != nil {
		t.Errorf("after an argument that cannot be encoded: %v", err)
	}
	wantEffects(t, pool, "unsent", 1)
}

// A tracer that knows no batches.
type tracer struct{ seen atomic.Pointer[string] }

func (tr *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "effects") {
		tr.seen.Store(&data.SQL)
	}
	return ctx
}

func (*tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestTx_TracersSeeTheFirstStatement(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(*tracer) pgx.QueryTracer{
		"alone":        func(tr *tracer) pgx.QueryTracer { return tr },
		"among others": func(tr *tracer) pgx.QueryTracer { return multitracer.New(tr) },
	} {
		var tr tracer
		pool := newPool(t, prepared, func(c *pgxpool.Config) { c.ConnConfig.Tracer = wrap(&tr) })
		s := newStore(t, pool, Config{})
		tr.seen.Store(nil)
		if err := inInbox(t, s, "1", func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insertEffect, "1")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if seen := tr.seen.Load(); seen == nil || *seen != insertEffect {
			t.Errorf("%s: the tracer saw %v", name, seen)
		}
	}
}

// A rewriter uses the connection that its statement is for.
type rewriter func(ctx context.Context, conn *pgx.Conn) error

func (r rewriter) RewriteQuery(ctx context.Context, conn *pgx.Conn, query string, args []any) (string, []any, error) {
	return query, args, r(ctx, conn)
}

// TestTx_RewritersWorkInTheTransaction has what a rewriter of the first statement writes: it goes with the run.
func TestTx_RewritersWorkInTheTransaction(t *testing.T) {
	t.Parallel()
	pool := newPool(t, prepared)
	s := newStore(t, pool, Config{})
	no := errors.New("no")
	if err := inInbox(t, s, "1", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insertEffect, rewriter(func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, insertEffect, "1")
			return err
		}), "1")
		return cmp.Or(err, no)
	}); !errors.Is(err, no) {
		t.Errorf("the run returned %v, want the handler's error", err)
	}
	wantEffects(t, pool, "1", 0)
}

// TestTx_OptionsBehindNamedArgumentsAreHeeded has what a batch would leave out, or not take.
func TestTx_OptionsBehindNamedArgumentsAreHeeded(t *testing.T) {
	t.Parallel()
	pool := newPool(t, prepared)
	s := newStore(t, pool, Config{})
	no := errors.New("no")
	named := pgx.NamedArgs{"id": "1"}
	const query = `INSERT INTO effects VALUES (@id, 1)`
	writes := rewriter(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, insertEffect, "1")
		return err
	})
	for name, first := range map[string]struct {
		query string
		args  []any
		kept  bool // prepared by the connection, for further runs
	}{
		"named":                {query, []any{named}, true},
		"strict":               {query, []any{pgx.StrictNamedArgs(named)}, true},
		"mode behind named":    {query, []any{named, pgx.QueryExecModeExec}, false},
		"mode behind strict":   {query, []any{pgx.StrictNamedArgs(named), pgx.QueryExecModeExec}, false},
		"rewriter behind them": {insertEffect, []any{named, writes, "1"}, true},
		"nothing":              {``, []any{pgx.NamedArgs{}}, false},
		"nothing, strict":      {`-- nothing`, []any{pgx.StrictNamedArgs{}}, false},
	} {
		query := first.query
		if strings.HasPrefix(query, "INSERT") {
			query += ` -- ` + name
		}
		if err := inInbox(t, s, name, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, query, first.args...)
			var kept bool
			if err == nil {
				err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE statement LIKE 'INSERT%-- ' || $1)`, name).Scan(&kept)
			}
			if err == nil && kept != first.kept {
				t.Errorf("%s: it is %v that the statement was prepared for further runs", name, kept)
			}
			return cmp.Or(err, no)
		}); !errors.Is(err, no) {
			t.Errorf("%s: the run returned %v, want the handler's error", name, err)
		}
		wantEffects(t, pool, "1", 0)
	}
}

// TestTx_WhatAHandlerLeavesUnderWayReachesNoOtherRun: a statement that began as the run ended was made on the connection when that was
// another's, who found it busy; and pgx may panic where a pool closes a connection under a statement.
func TestTx_WhatAHandlerLeavesUnderWayReachesNoOtherRun(t *testing.T) {
	t.Parallel()
	pool := newPool(t, prepared)
	s := newStore(t, pool, Config{})
	inbox := s.Inbox()
	var workers, left sync.WaitGroup
	var failed sync.Map
	for worker := range 10 {
		workers.Go(func() {
			for n := range full(2000, 200) {
				id := fmt.Sprintf("%d-%d", worker, n)
				a, err := inbox.Claim(t.Context(), request(id))
				if err != nil || a.Status != dedupstore.AcquiredRun {
					t.Errorf("%s: %+v, %v", id, a, err)
					return
				}
				err = inbox.InTx(t.Context(), a.Claim, func(ctx context.Context) (dedupstore.Settlement, error) {
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

// TestTx_WhoEndsTheTransactionIsFoundOutAlsoWithACallUnderWay: what such a handler committed has no outcome, and must not be done again.
func TestTx_WhoEndsTheTransactionIsFoundOutAlsoWithACallUnderWay(t *testing.T) {
	t.Parallel()
	pool := newPool(t, prepared)
	inbox := newStore(t, pool, Config{}).Inbox()
	for id, end := range map[string]string{"1": "COMMIT", "2": "SAVEPOINT s"} {
		var left sync.WaitGroup
		err := inbox.InTx(t.Context(), claim(t, inbox, request(id), dedupstore.AcquiredRun).Claim, func(ctx context.Context) (dedupstore.Settlement, error) {
			tx := Tx(ctx)
			for _, query := range []string{`INSERT INTO effects VALUES ('` + id + `', 1)`, end} {
				if _, err := tx.Exec(ctx, query); err != nil {
					t.Error(err)
				}
			}
			left.Go(func() { _, _ = tx.Exec(ctx, `SELECT pg_sleep(30), $1::text`, id) })
			until(t, "the statement", func() bool {
				var n int
				err := pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE 'SELECT pg_sleep(30), $1%'`).Scan(&n)
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
