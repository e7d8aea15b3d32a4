package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// TestTx_ConnectionsThatWereDeadAreReplaced is what a handler met first after each restart of the server, as the pool looks only
// at connections that nobody has used for a second.
func TestTx_ConnectionsThatWereDeadAreReplaced(t *testing.T) {
	t.Parallel()
	operator := newPool(t)
	newStore(t, operator, Config{})
	for name, handler := range map[string]func(ctx context.Context, tx pgx.Tx, id string) error{
		"exec": func(ctx context.Context, tx pgx.Tx, id string) error {
			_, err := tx.Exec(ctx, insertEffect, id)
			return err
		},
		"query": func(ctx context.Context, tx pgx.Tx, id string) error {
			return tx.QueryRow(ctx, insertEffect+` RETURNING id`, id).Scan(&id)
		},
		"nothing": func(context.Context, pgx.Tx, string) error { return nil },
	} {
		pool := poolIn(t, operator.Config().ConnConfig.RuntimeParams["search_path"], prepared, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["application_name"] = "dead-" + name
		})
		s := unmigrated(t, pool, Config{})
		calls := 0
		c := runOf(t, s.Inbox(), name)
		var held []*pgxpool.Conn
		for range 6 {
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, conn)
		}
		for _, conn := range held {
			conn.Release()
		}
		mustExec(t, operator, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = $1`, "dead-"+name)
		err := s.Inbox().InTx(t.Context(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			calls++
			return success, handler(ctx, Tx(ctx), name)
		})
		if err != nil || calls != 1 {
			t.Errorf("%s: %v after %d calls, want one that succeeds", name, err, calls)
		}
		if name != "nothing" {
			wantEffects(t, operator, name, 1)
		}
		claim(t, s, request(name), dedupstore.Done)
	}
}

// TestTx_AServerThatIsAwayIsAnError for the handler, which is not told something else after it, and not the end of its transaction.
func TestTx_AServerThatIsAwayIsAnError(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	var log bytes.Buffer
	pool, p := behind(t, direct, prepared)
	s := unmigrated(t, pool, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for name, swallowed := range map[string]bool{"told": false, "swallowed": true} {
		c := runOf(t, s.Inbox(), name)
		p.inject(func(int, string) fault { return cutBefore })
		err := s.Inbox().InTx(t.Context(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			_, err := Tx(ctx).Exec(ctx, insertEffect, name)
			if err == nil {
				t.Errorf("%s: the statement succeeded", name)
			}
			if _, again := Tx(ctx).Exec(ctx, insertEffect, name); again == nil {
				t.Errorf("%s: a second statement succeeded", name)
			}
			if swallowed {
				err = nil
			}
			return success, err
		})
		p.inject(nil)
		if err == nil || errors.Is(err, dedupstore.ErrEnded) {
			t.Errorf("%s: the run returned %v", name, err)
		}
		wantEffects(t, direct, name, 0)
		if err := s.Inbox().InTx(t.Context(), c, paying(c)); err != nil {
			t.Errorf("%s: the next run returned %v", name, err)
		}
	}
	if log.Len() > 0 {
		t.Errorf("the log says %q", log.String())
	}
}

// TestInbox_ATransactionThatCannotBeginCountsNoAttempt, whatever the handler makes of the error of its first statement.
func TestInbox_ATransactionThatCannotBeginCountsNoAttempt(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct, prepared)
	s := unmigrated(t, pool, Config{})
	pay := func(ctx context.Context, id string) error {
		_, err := Tx(ctx).Exec(ctx, insertEffect, id)
		return err
	}
	query := func(ctx context.Context, id string) error {
		return Tx(ctx).QueryRow(ctx, insertEffect+` RETURNING id`, id).Scan(&id)
	}
	for name, handler := range map[string]func(ctx context.Context, id string) error{
		"told":    pay,
		"query":   query,
		"nothing": func(context.Context, string) error { return nil },
		"swallowed": func(ctx context.Context, id string) error {
			_ = pay(ctx, id)
			return nil
		},
		"its own": func(ctx context.Context, id string) error {
			if pay(ctx, id) != nil {
				return errors.New("no")
			}
			return nil
		},
		"permanent": func(ctx context.Context, id string) error { return oncemill.Permanent(query(ctx, id)) },
	} {
		g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{
			MaxAttempts: 1, Backoff: oncemill.Backoff{Min: time.Millisecond, Max: time.Millisecond}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		run := func() (oncemill.Result, error) {
			return g.Run(t.Context(), callOf(name), func(ctx context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{}, handler(ctx, name)
			})
		}
		pool.Reset() // for new connections, which say what they prepare
		p.inject(func(_ int, request string) fault {
			if strings.Contains(request, "BEGIN READ WRITE") {
				return cutBefore
			}
			return faithful
		})
		_, err = run()
		if retry, again := errors.AsType[*oncemill.RetryError](err); !again || !retry.Uncounted {
			t.Errorf("%s: %v, want another try that counts nothing", name, err)
		}
		p.inject(nil)
		for start := time.Now(); time.Since(start) < time.Minute; lasts(5 * time.Millisecond) { // it has to be due
			res, err := run()
			if busy, is := errors.AsType[*oncemill.BusyError](err); is && busy.NotDue {
				continue
			}
			if err != nil || res.Attempt != 1 || res.Outcome.Kind != dedupstore.Succeeded {
				t.Errorf("%s: the next run returned %+v, %v", name, res, err)
			}
			break
		}
		if name != "nothing" {
			wantEffects(t, direct, name, 1)
		}
	}
}

// TestInbox_AStatementThatMayEndTheServerCountsInTheEnd: one that does so each time would be made for ever, while BEGIN alone is not
// to blame.
func TestInbox_AStatementThatMayEndTheServerCountsInTheEnd(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct, prepared)
	s := unmigrated(t, pool, Config{})
	g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{
		MaxAttempts: 1, Backoff: oncemill.Backoff{Min: time.Millisecond, Max: time.Millisecond}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	p.inject(func(_ int, request string) fault {
		if strings.Contains(request, "BEGIN READ WRITE") {
			return cutBefore
		}
		return faithful
	})
	errHandler := errors.New("the handler's")
	for name, handler := range map[string]func(ctx context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := Tx(ctx).Exec(ctx, insertEffect, "exec")
			return err
		},
		"query": func(ctx context.Context) error { return Tx(ctx).QueryRow(ctx, `SELECT 1`).Scan(new(int)) },
	} {
		calls := 0
		call := callOf(name)
		call.MaxWait = time.Minute // until it is due
		var res oncemill.Result
		for calls <= maxDoubts && res.Outcome.Kind != dedupstore.Failed {
			res, err = g.Run(t.Context(), call, func(ctx context.Context) (dedupstore.Outcome, error) {
				calls++
				if handler(ctx) == nil {
					t.Errorf("%s: the statement succeeded", name)
				}
				return dedupstore.Outcome{}, errHandler
			})
		}
		if ends := name == "exec"; calls != maxDoubts+1 || ends != (res.Outcome.Kind == dedupstore.Failed) || ends && !strings.Contains(res.Outcome.Reason, errHandler.Error()) {
			t.Errorf("%s: %d calls, %+v, %v", name, calls, res, err)
		}
	}
}

// TestTx_AStatementThatIsGivenUpIsTheHandlersFailure and nothing that the handler does afterwards is committed without it.
func TestTx_AStatementThatIsGivenUpIsTheHandlersFailure(t *testing.T) {
	t.Parallel()
	pool := newPool(t, prepared)
	var log bytes.Buffer
	s := newStore(t, pool, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
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
		if err == nil || !swallowed && !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dedupstore.ErrEnded) || calls != 1 {
			t.Errorf("%s: the run returned %v after %d calls", name, err, calls)
		}
		wantEffects(t, pool, name, 0)
	}
	if log.Len() > 0 {
		t.Errorf("the log says %q", log.String())
	}
}

// TestInbox_AtMostOnceBeginsBeforeTheHandler: a transaction that cannot begin must not cost the only run.
func TestInbox_AtMostOnceBeginsBeforeTheHandler(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct, prepared)
	s := unmigrated(t, pool, Config{})
	policy := oncemill.Irreversible()
	policy.Logger = slog.New(slog.DiscardHandler)
	g, err := oncemill.NewGuard(s.Inbox(), policy)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	handler := func(ctx context.Context) (dedupstore.Outcome, error) {
		calls++
		_, err := Tx(ctx).Exec(ctx, insertEffect, "1")
		return dedupstore.Outcome{}, err
	}
	p.inject(func(_ int, request string) fault {
		if strings.Contains(request, "BEGIN READ WRITE") {
			return cutBefore
		}
		return faithful
	})
	if _, err := g.Run(t.Context(), callOf("1"), handler); err == nil || calls != 0 {
		t.Errorf("%v after %d calls, want an error before the handler", err, calls)
	}
	p.inject(nil)
	for start := time.Now(); calls == 0 && time.Since(start) < time.Minute; lasts(5 * time.Millisecond) {
		_, err = g.Run(t.Context(), callOf("1"), handler)
	}
	if err != nil || calls != 1 {
		t.Errorf("%v after %d calls, want one that succeeds", err, calls)
	}
	wantEffects(t, direct, "1", 1)
}

// TestTx_AConnectionIsReplacedInItsPlace has a handler that holds the pool's other connection when its own is dead: it would wait for
// itself until its lease ends. Where none can be had, it is told.
func TestTx_AConnectionIsReplacedInItsPlace(t *testing.T) {
	t.Parallel()
	operator := newPool(t)
	newStore(t, operator, Config{})
	var refuses atomic.Bool
	pool := poolIn(t, operator.Config().ConnConfig.RuntimeParams["search_path"], prepared, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "in-place"
		c.MaxConns = 2
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if refuses.Load() {
				return errors.New("refused")
			}
			return nil
		}
	})
	s := unmigrated(t, pool, Config{})
	for name, first := range map[string]func(context.Context, pgx.Tx, string) error{
		"exec": func(ctx context.Context, tx pgx.Tx, id string) error {
			_, err := tx.Exec(ctx, insertEffect, id)
			return err
		},
		"query": func(ctx context.Context, tx pgx.Tx, id string) error {
			return tx.QueryRow(ctx, insertEffect+` RETURNING id`, id).Scan(&id)
		},
	} {
		for _, refused := range []bool{false, true} {
			id := fmt.Sprint(name, refused)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			c := runOf(t, s.Inbox(), id)
			err := s.Inbox().InTx(ctx, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				second, err := pool.Acquire(ctx)
				if err != nil {
					return nil, err
				}
				defer second.Release()
				mustExec(t, operator, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'in-place' AND pid <> $1`,
					second.Conn().PgConn().PID())
				refuses.Store(refused)
				defer refuses.Store(false)
				err = first(ctx, Tx(ctx), id)
				if refused && err == nil {
					t.Errorf("%s: the statement succeeded", id)
				}
				if refused {
					if _, err := Tx(ctx).Exec(ctx, insertEffect, id); err == nil {
						t.Errorf("%s: a second statement succeeded", id)
					}
					err = nil // swallowed: nothing is settled without it
				}
				return success, err
			})
			cancel()
			if refused != (err != nil) || errors.Is(err, dedupstore.ErrEnded) {
				t.Errorf("%s: the run returned %v", id, err)
			}
			wantEffects(t, operator, id, map[bool]int{false: 1, true: 0}[refused])
		}
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
}

// TestTx_AFirstStatementThatIsCancelledFailsTheTransaction also where it was not prepared yet, and the connection stays open because
// the pool cancels what is given up by a request to the server.
func TestTx_AFirstStatementThatIsCancelledFailsTheTransaction(t *testing.T) {
	t.Parallel()
	pool := newPool(t, prepared, func(c *pgxpool.Config) {
		c.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Minute}
		}
	})
	s := newStore(t, pool, Config{})
	mustExec(t, pool, `CREATE TABLE locked (id text)`)
	lock := begin(t, pool, pgx.ReadCommitted)
	if _, err := lock.Exec(t.Context(), `LOCK TABLE locked`); err != nil {
		t.Fatal(err)
	}
	if err := inInbox(t, s, "1", func(ctx context.Context, tx pgx.Tx) error {
		bounded, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if _, err := tx.Exec(bounded, `INSERT INTO locked VALUES ($1)`, "1"); err == nil {
			t.Error("the statement succeeded")
		}
		if _, err := tx.Exec(ctx, insertEffect, "1"); err == nil {
			t.Error("a second statement succeeded")
		}
		return nil // swallowed: nothing is settled without it
	}); err == nil || errors.Is(err, dedupstore.ErrEnded) {
		t.Errorf("the run returned %v", err)
	}
	wantEffects(t, pool, "1", 0)
}

// TestTx_HooksOfThePoolFindTheRunsValues also where a method without a context replaces a connection: they may set whose data it shows.
func TestTx_HooksOfThePoolFindTheRunsValues(t *testing.T) {
	t.Parallel()
	operator := newPool(t)
	newStore(t, operator, Config{})
	type tenant struct{}
	pool := poolIn(t, operator.Config().ConnConfig.RuntimeParams["search_path"], prepared, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "tenants"
		c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
			_, err := conn.Exec(ctx, `SELECT set_config('app.tenant', $1, false)`, fmt.Sprint(ctx.Value(tenant{})))
			return err == nil, err
		}
	})
	s := unmigrated(t, pool, Config{})
	for name, connOf := range map[string]func(context.Context) *pgx.Conn{
		"conn":         func(ctx context.Context) *pgx.Conn { return Tx(ctx).Conn() },
		"large object": func(ctx context.Context) *pgx.Conn { Tx(ctx).LargeObjects(); return Tx(ctx).Conn() },
	} {
		c := runOf(t, s.Inbox(), name)
		var shown string
		err := s.Inbox().InTx(context.WithValue(t.Context(), tenant{}, "acme"), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			mustExec(t, operator, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'tenants'`)
			return success, connOf(ctx).QueryRow(ctx, `SELECT current_setting('app.tenant')`).Scan(&shown)
		})
		if err != nil || shown != "acme" {
			t.Errorf("%s: the connection shows the data of %q, %v", name, shown, err)
		}
	}
}

// TestInbox_AFirstStatementThatAHandlerLeftUnderWay fails the run, and holds nothing after it: neither a connection of the pool nor a
// transaction that nobody ends.
func TestInbox_AFirstStatementThatAHandlerLeftUnderWay(t *testing.T) {
	t.Parallel()
	pool := newPool(t, prepared)
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
				err := lock.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'effects'::regclass AND NOT granted)`).Scan(&waits)
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

// TestTx_AServerThatIsTooSlowForAMethodWithoutAContext counts no attempt: the bound is not one that the handler has set.
func TestTx_AServerThatIsTooSlowForAMethodWithoutAContext(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct, prepared)
	s := unmigrated(t, pool, Config{})
	c := runOf(t, s.Inbox(), "1")
	p.inject(func(int, string) fault { return silentHold })
	err := s.Inbox().InTx(t.Context(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		_, err := Tx(ctx).Conn().Exec(ctx, insertEffect, "1")
		close(p.late)
		return nil, err
	})
	if _, unbegun := errors.AsType[*unbegunError](err); !unbegun {
		t.Errorf("the run returned %v, want that its transaction could not begin", err)
	}
	wantEffects(t, direct, "1", 0)
}

// TestTx_ConnTouchesNoConnectionOfOthers has the run end while Conn begins, and Conn begin while another goroutine does.
func TestTx_ConnTouchesNoConnectionOfOthers(t *testing.T) {
	t.Parallel()
	pool := newPool(t, prepared)
	s := newStore(t, pool, Config{})
	var late *lateTx
	if err := inInbox(t, s, "1", func(ctx context.Context, tx pgx.Tx) error {
		late = tx.(inboxTx).opener.(*lateTx)
		_, err := tx.Exec(ctx, insertEffect, "1")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	others := pool.AcquireAllIdle(t.Context())
	if _, err := late.now(); err == nil {
		t.Error("a transaction began after the run")
	}
	for _, other := range others {
		if err := other.Ping(t.Context()); err != nil {
			t.Errorf("another user of the pool got %v", err)
		}
		other.Release()
	}

	lock := begin(t, pool, pgx.ReadCommitted)
	if _, err := lock.Exec(t.Context(), `LOCK TABLE effects`); err != nil {
		t.Fatal(err)
	}
	if err := inInbox(t, s, "2", func(ctx context.Context, tx pgx.Tx) error {
		made := make(chan error, 1)
		go func() {
			_, err := tx.Exec(ctx, insertEffect, "2")
			made <- err
		}()
		until(t, "a statement that waits", func() bool {
			var waits bool
			err := lock.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'effects'::regclass AND NOT granted)`).Scan(&waits)
			return err != nil || waits
		})
		_ = tx.Conn().TypeMap()
		return errors.Join(lock.Rollback(ctx), <-made)
	}); err != nil {
		t.Errorf("the run returned %v", err)
	}
	wantEffects(t, pool, "2", 1)
	until(t, "connections that are given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
	for _, other := range pool.AcquireAllIdle(t.Context()) {
		if err := other.Ping(t.Context()); err != nil {
			t.Errorf("the pool was given a connection that is dead: %v", err)
		}
		other.Release()
	}
}
