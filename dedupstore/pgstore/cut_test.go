package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// TestInbox_ConnectionsLostAtEachStatement loses the connection at each request of a message's life, before and after
// the server had it. It delivers the message until it is done. There is one effect, and one outcome.
func TestInbox_ConnectionsLostAtEachStatement(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		form func(*Store) dedupstore.Transactor
		on   func(context.Context) handle
	}{
		"pgx": {(*Store).Inbox, onPgx}, "sql": {(*Store).InboxSQL, onSQL},
	} {
		for _, f := range []fault{cutBefore, cutAfter, cutDuring} {
			t.Run(fmt.Sprintf("%s-%d", name, f), func(t *testing.T) {
				t.Parallel()
				direct := newPool(t)
				newStore(t, direct, Config{})
				pool, p := behind(t, direct)
				inbox := tc.form(unmigrated(t, pool, Config{}))
				g := newGuard(t, inbox, leaseOfCuts)
				for n := 1; ; n++ {
					id := fmt.Sprintf("cut-%d", n)
					requests := deliver(t, g, p, n, f, id, func(ctx context.Context) error {
						return tc.on(ctx).exec(ctx, `INSERT INTO effects VALUES ($1, 1)`, id)
					})
					wantEffects(t, direct, id, 1)
					if a := claim(t, inbox, request(id), dedupstore.Done); a.Outcome.Kind != dedupstore.Succeeded {
						t.Errorf("%s: the outcome is %+v", id, a.Outcome)
					}
					if requests < n {
						if requests < 4 {
							t.Errorf("a message takes %d requests only: what was cut?", requests)
						}
						break
					}
				}
			})
		}
	}
}

// leaseOfCuts is how long a claim lives whose answer was lost.
const leaseOfCuts = 400 * time.Millisecond

// deliver delivers a message until it is done, with a fault in the n-th request. It returns how many requests there
// were.
func deliver(t *testing.T, g *oncemill.Guard, p *proxy, n int, f fault, id string,
	handler func(context.Context) error) int {
	t.Helper()
	var requests atomic.Int64
	p.inject(func(int, string) fault {
		if requests.Add(1) == int64(n) {
			return f
		}
		return faithful
	})
	defer p.inject(nil)
	for start := time.Now(); ; lasts(5 * time.Millisecond) {
		res, err := g.Run(t.Context(), callOf(id), func(ctx context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: []byte("paid")}, handler(ctx)
		})
		if err == nil {
			if string(res.Outcome.Result) != "paid" {
				t.Errorf("%s: the outcome is %+v", id, res.Outcome)
			}
			return int(requests.Load())
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("%s: not done after a minute: %v", id, err)
		}
	}
}

// TestInbox_ACommitThatComesLateIsRefused is about requests that are on their way when the client gives up.
func TestInbox_ACommitThatComesLateIsRefused(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	s := newStore(t, direct, Config{})
	pool, p := behind(t, direct)
	inbox := unmigrated(t, pool, Config{}).Inbox()
	p.inject(func(_ int, request string) fault {
		if commits(request) {
			return lateAfter
		}
		return faithful
	})
	r := request("1")
	c := claim(t, inbox, r, dedupstore.AcquiredRun).Claim
	err := dedupstore.InTxOne(t.Context(), inbox, c, paying(c))
	if err == nil || errors.Is(err, dedupstore.ErrClaimLost) {
		t.Fatalf("the run returned %v, want that it was not committed", err)
	}
	if undecided, ok := errors.AsType[*dedupstore.UndecidedError](err); ok {
		t.Fatalf("the run returned %v, although the record could be read", undecided)
	}
	p.release()
	until(t, "the end of the late transaction", func() bool { return sessionsInTx(t, direct) == 0 })
	wantEffects(t, direct, "1", 0)
	if again := claim(t, s, r, dedupstore.AcquiredRun).Claim; again != c {
		t.Errorf("the claim is %+v, want %+v", again, c)
	}
	p.inject(nil)
	if err := dedupstore.InTxOne(t.Context(), inbox, c, paying(c)); err != nil { // another transaction of the same run
		t.Error(err)
	}
	wantEffects(t, direct, "1", 1)
}

// sessionsInTx is how many transactions are open on the schema of a pool, but for the one that looks.
func sessionsInTx(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `
SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE c.relnamespace = current_schema()::regnamespace AND l.pid <> pg_backend_pid()`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestInbox_ACommitThatIsStillUnderWayIsWaitedFor has a commit that takes longer than the client's connection lives.
func TestInbox_ACommitThatIsStillUnderWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	mustExec(t, direct, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_sleep(3); RETURN NULL; END'`)
	mustExec(t, direct, `CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION slow()`)
	pool, p := behind(t, direct)
	p.begun = func() {
		until(t, "the server to commit", func() (commits bool) {
			err := direct.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE wait_event = 'PgSleep' AND lower(query) LIKE 'commit%')`).Scan(&commits)
			return err == nil && commits
		})
	}
	for id, inbox := range map[string]dedupstore.Transactor{
		"pgx":          unmigrated(t, pool, Config{}).Inbox(),
		"serializable": unmigrated(t, pool, Config{Isolation: pgx.Serializable}).Inbox(),
	} {
		p.inject(func(_ int, request string) fault {
			if commits(request) {
				return cutDuring
			}
			return faithful
		})
		c := runOf(t, inbox, id)
		calls := 0
		if err := dedupstore.InTxOne(t.Context(), inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
			calls++
			return success, effect(ctx, c)
		}); err != nil {
			t.Errorf("%s: the run returned %v, although it has committed", id, err)
		}
		p.inject(nil)
		if calls != 1 {
			t.Errorf("%s: the handler was called %d times", id, calls)
		}
		wantEffects(t, direct, id, 1)
		claim(t, inbox, request(id), dedupstore.Done)
	}
}

func TestInbox_SaysWhenItCannotFindOut(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	s := newStore(t, direct, Config{})
	pool, p := behind(t, direct)
	for name, fate := range map[string]fault{"applied": cutAfter, "lost": cutBefore} {
		inbox := unmigrated(t, pool, Config{}).Inbox()
		r := request(name)
		r.Lease = 300 * time.Millisecond
		c := claim(t, inbox, r, dedupstore.AcquiredRun).Claim
		var down atomic.Bool
		p.inject(func(_ int, request string) fault {
			switch {
			case down.Load():
				return cutBefore
			case commits(request):
				down.Store(true)
				return fate
			}
			return faithful
		})
		start := time.Now()
		err := dedupstore.InTxOne(t.Context(), inbox, c, paying(c))
		if undecided, ok := errors.AsType[*dedupstore.UndecidedError](err); !ok || undecided.Err == nil {
			t.Errorf("%s: the run returned %v, want an UndecidedError", name, err)
		}
		if took := time.Since(start); took < r.Lease || took > 100*r.Lease {
			t.Errorf("%s: it took %v to give up, want about the lease of %v", name, took, r.Lease)
		}
		p.inject(nil)
		if fate == cutAfter {
			wantEffects(t, direct, name, 1)
			claim(t, s, request(name), dedupstore.Done)
			continue
		}
		until(t, "the end of the transaction", func() bool { return sessionsInTx(t, direct) == 0 })
		wantEffects(t, direct, name, 0)
		claim(t, s, request(name), dedupstore.AcquiredRun)
	}
}

// TestStore_ConnectionsLostAtEachStatement is for the leased form: a run whose settlement got no answer is settled by
// the repetition.
func TestStore_ConnectionsLostAtEachStatement(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct)
	g := newGuard(t, unmigrated(t, pool, Config{}), 3*leaseOfCuts) // or a slow settlement misses the end of its lease
	for _, f := range []fault{cutBefore, cutAfter} {
		for n := range 4 {
			id := fmt.Sprintf("cut-%d-%d", f, n)
			runs := 0
			deliver(t, g, p, n+1, f, id, func(context.Context) error { runs++; return nil })
			if runs != 1 {
				t.Errorf("%s: the handler ran %d times, want once", id, runs)
			}
		}
	}
}
