package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// TestInbox_SmallPoolsGiveNoMessageUp has more handlers than connections: the runs that wait keep their leases, and no
// attempt is spent on them.
func TestInbox_SmallPoolsGiveNoMessageUp(t *testing.T) {
	t.Parallel()
	for _, conns := range []int32{2, 4} {
		t.Run(fmt.Sprint(conns), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, func(c *pgxpool.Config) { c.MaxConns = conns })
			s := newStore(t, pool, Config{})
			g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{
				Lease: 6 * time.Second, MaxAttempts: 3, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			messages := int(2 * (conns - 1)) // half of them wait until the others have ended
			var all sync.WaitGroup
			for i := range messages {
				all.Go(func() {
					call := callOf(fmt.Sprint(i))
					call.MaxWait = time.Minute // a slow machine is no failure
					res, err := g.Run(t.Context(), call, func(ctx context.Context) (dedupstore.Outcome, error) {
						lasts(7 * time.Second) // longer than a lease: without heartbeats it is lost
						_, err := Tx(ctx).Exec(ctx, insertEffect, fmt.Sprint(i))
						return dedupstore.Outcome{}, err
					})
					if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
						t.Errorf("message %d ended with %+v, %v", i, res.Outcome, err)
					}
				})
			}
			all.Wait()
			for i := range messages {
				wantEffects(t, pool, fmt.Sprint(i), 1)
			}
			if len(s.share.slots) != 0 {
				t.Errorf("%d slots are still taken", len(s.share.slots))
			}
		})
	}
}

// As where each tenant has a schema, or each part of a program makes a store for itself.
func TestInbox_StoresThatShareAPoolLeaveItsHeartbeatsAConnection(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(c *pgxpool.Config) { c.MaxConns = 4 })
	var all sync.WaitGroup
	for n := range 2 {
		s := newStore(t, pool, Config{Table: fmt.Sprint("dedup_", n)})
		g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{Lease: 6 * time.Second, MaxAttempts: 1,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 { // with the other store's, more than there are connections
			all.Go(func() {
				call := callOf(fmt.Sprint(n, "-", i))
				call.MaxWait = time.Minute
				res, err := g.Run(t.Context(), call, func(ctx context.Context) (dedupstore.Outcome, error) {
					lasts(7 * time.Second) // longer than a lease
					return dedupstore.Outcome{}, context.Cause(ctx)
				})
				if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
					t.Errorf("message %d of store %d ended with %+v, %v", i, n, res.Outcome, err)
				}
			})
		}
	}
	all.Wait()
}

func TestNew_APoolOfOneConnectionIsRefused(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	if _, err := New(pool, Config{}); !isInvalid(err, "pool") || !strings.Contains(err.Error(), "at least 2") {
		t.Errorf("New returned %v", err)
	}
}

func TestInbox_WarnsOnceOfAPoolThatIsTooSmallForWhatIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		s := &share{slots: make(slots, 3)}
		handle := func(n int, d time.Duration) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					free, err := s.take(t.Context(), logger)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(d)
					free()
				})
			}
			all.Wait()
		}
		handle(6, time.Minute)          // as many wait as have a slot
		handle(60, 10*time.Millisecond) // many, but not for long
		if log.Len() > 0 {
			t.Errorf("the log says %s", &log)
		}
		for range 2 {
			handle(60, time.Second)
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "pool_max_conns") ||
			!strings.Contains(got, "MaxInFlight") {
			t.Errorf("the log says %q, want one line that names both settings", got)
		}
	})
}

// Handlers that write past their transaction, or have no need of one, lose what an inbox is for.
func TestInbox_WarnsOnceOfHandlersThatWriteNothingInTheTransaction(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for name, of := range map[string]func(*Store) (dedupstore.Transactor, func(context.Context) handle){
		"pgx": func(s *Store) (dedupstore.Transactor, func(context.Context) handle) { return s.Inbox(), onPgx },
		"sql": func(s *Store) (dedupstore.Transactor, func(context.Context) handle) { return s.InboxSQL(), onSQL },
	} {
		for _, uses := range []bool{false, true} {
			var log bytes.Buffer
			inbox, on := of(newStore(t, pool, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
			for i := range fewRuns + 10 {
				c := runOf(t, inbox, fmt.Sprint(name, uses, i))
				if err := dedupstore.InTxOne(t.Context(), inbox, c,
					func(ctx context.Context) (dedupstore.Settlement, error) {
						if uses && i == fewRuns-1 {
							return success, on(ctx).exec(ctx, insertEffect, c.Key.ID)
						}
						return success, nil
					}); err != nil {
					t.Fatal(err)
				}
			}
			if n := strings.Count(log.String(), "use the leased store"); uses && n != 0 || !uses && n != 1 {
				t.Errorf("%s: a handler uses its transaction: %v; the log warns %d times: %s", name, uses, n, &log)
			}
		}
	}
}

func TestOwners_AreBoundedAndForgotten(t *testing.T) {
	t.Parallel()
	var known owners
	if !known.take("a").IsZero() || known.has("a") {
		t.Error("an owner is known from the start")
	}
	end := time.Now()
	known.add("a", end)
	if !known.has("a") || known.take("a") != end || known.has("a") {
		t.Error("an owner is not kept until it is taken")
	}
	for i := range 3 * mostOwners {
		known.add(fmt.Sprint(i), end)
		if len(known.until) > mostOwners {
			t.Fatalf("%d owners are kept", len(known.until))
		}
	}
}

// TestInbox_ClaimsThatAreLostUnnoticedCannotCommit is for the first transaction of a claim, which is not looked for.
func TestInbox_ClaimsThatAreLostUnnoticedCannotCommit(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for name, spoil := range map[string]string{
		"deleted": `DELETE FROM oncemill_dedup WHERE id = $1`,
		"taken":   `UPDATE oncemill_dedup SET fence = fence + 1, owner = 'another' WHERE id = $1`,
	} {
		for form, inbox := range map[string]dedupstore.Transactor{"pgx": s.Inbox(), "sql": s.InboxSQL()} {
			c := runOf(t, inbox, name+form)
			mustExec(t, pool, spoil, idOf(c.Key.String()))
			calls := 0
			for range 2 {
				if err := dedupstore.InTxOne(t.Context(), inbox, c,
					func(ctx context.Context) (dedupstore.Settlement, error) {
						calls++
						return success, map[string]func(context.Context) handle{"pgx": onPgx,
							"sql": onSQL}[form](ctx).exec(ctx, insertEffect, name+form)
					}); err == nil {
					t.Errorf("%s, %s: the run committed", name, form)
				}
			}
			if calls > 1 {
				t.Errorf("%s, %s: the handler was called %d times, want once at most", name, form, calls)
			}
			wantEffects(t, pool, name+form, 0)
		}
	}
}

// TestClaim_GrantsAKeyOfABatchToOneOfSeveral mixes new keys, known ones, and several claims of one key.
func TestClaim_GrantsAKeyOfABatchToOneOfSeveral(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for round := range 4 { // after a batch of known keys the next is claimed in another way
		id := func(name string) string { return fmt.Sprint(name, "-", round) }
		runOf(t, s, id("known"))
		requests := []dedupstore.Request{request(id("known")), request(id("new")), request(id("twice")),
			request(id("twice")), request(id("again"))}
		requests = append(requests, requests[4]) // a copy: the same owner
		results := s.Claim(t.Context(), requests)
		want := []dedupstore.Status{dedupstore.Busy, dedupstore.AcquiredRun, dedupstore.AcquiredRun, dedupstore.Busy,
			dedupstore.AcquiredRun, dedupstore.AcquiredRun}
		for i, r := range results {
			if r.Err != nil || r.Answer.Status != want[i] {
				t.Errorf("claim %d was answered %s, %v, want %s", i, r.Answer.Status, r.Err, want[i])
				continue
			}
			if want[i] == dedupstore.AcquiredRun {
				if err := beat(t.Context(), s, r.Answer.Claim, long); err != nil {
					t.Errorf("claim %d does not hold: %v", i, err)
				}
			}
		}
		for range 2 * (round % 2) {
			s.Claim(t.Context(), requests)
		}
	}
}

// TestClaim_TheFirstOfSeveralInABatchHasTheKey has batches of new keys, with several claims of each.
func TestClaim_TheFirstOfSeveralInABatchHasTheKey(t *testing.T) {
	t.Parallel()
	const keys, copies = 40, 3
	s := newStore(t, newPool(t), Config{})
	var requests []dedupstore.Request
	for i := range keys * copies {
		requests = append(requests, request(fmt.Sprint(i%keys)))
	}
	for i, r := range s.Claim(t.Context(), requests) {
		want := dedupstore.Busy
		if i < keys {
			want = dedupstore.AcquiredRun
		}
		if r.Err != nil || r.Answer.Status != want {
			t.Errorf("claim %d of key %d was answered %s, %v, want %s", i/keys, i%keys, r.Answer.Status, r.Err, want)
		}
	}
}

// TestClaim_ErrorsCostNoConnections has claims of a key with a record, and cleanings, that a trigger refuses.
func TestClaim_ErrorsCostNoConnections(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, func(c *pgxpool.Config) {
				c.MaxConns = 2
				c.ConnConfig.DefaultQueryExecMode = mode
			})
			s := newStore(t, pool, Config{})
			ended := brief("1")
			claim(t, s, ended, dedupstore.AcquiredRun)
			lasts(2 * ended.Lease)
			mustExec(t, pool, `UPDATE oncemill_dedup SET clean_at = clock_timestamp() - interval '1 hour'`)
			mustExec(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN RAISE EXCEPTION 'no'; END $$`)
			mustExec(t, pool, `CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON oncemill_dedup
				EXECUTE FUNCTION refuse()`)
			pids := func() (all []string) {
				var taken []*pgxpool.Conn
				for range 2 {
					c, err := pool.Acquire(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					taken = append(taken, c)
					all = append(all, fmt.Sprint(c.Conn().PgConn().PID()))
				}
				for _, c := range taken {
					c.Release()
				}
				slices.Sort(all)
				return all
			}
			before := pids()
			for range 3 {
				if _, err := dedupstore.ClaimOne(t.Context(), s, request("1")); err == nil {
					t.Error("a claim was answered although the table refuses it")
				}
				if _, err := s.Clean(t.Context(), 10); err == nil {
					t.Error("a record was removed although the table refuses that")
				}
			}
			if after := pids(); !slices.Equal(after, before) {
				t.Errorf("the connections are %v, want %v as before", after, before)
			}
		})
	}
}
