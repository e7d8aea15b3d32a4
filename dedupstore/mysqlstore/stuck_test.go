package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

// stuckLease is as short as a machine that is busy with other tests allows.
const stuckLease = 6 * time.Second

// A crowd is what became of runs beside one that is stuck.
type crowd struct {
	t     *testing.T
	guard *oncemill.Guard
	all   sync.WaitGroup
	ready sync.WaitGroup
	goOn  chan struct{}

	stored, unrecorded, unknown, cancelled atomic.Int64
}

func newCrowd(t *testing.T, s dedupstore.Store, expired oncemill.ExpiredLease) *crowd {
	t.Helper()
	g, err := oncemill.NewGuard(s, oncemill.Policy{
		Lease: stuckLease, ExpiredLease: expired, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return &crowd{t: t, guard: g, goOn: make(chan struct{})}
}

// start begins runs, and returns when their handlers have begun. They end when goOn is closed, or their context ends.
func (c *crowd) start(ids ...string) {
	c.ready.Add(len(ids))
	for _, id := range ids {
		c.all.Go(func() {
			res, err := c.guard.Run(c.t.Context(), oncemill.Call{Key: request(id).Key},
				func(ctx context.Context) (dedupstore.Outcome, error) {
					c.ready.Done()
					select {
					case <-c.goOn:
						return dedupstore.Outcome{}, nil
					case <-ctx.Done():
						c.cancelled.Add(1)
						return dedupstore.Outcome{}, context.Cause(ctx)
					}
				})
			_, unrecorded := answertest.Is(err, oncemill.StatusUnrecorded)
			switch {
			case unrecorded:
				c.unrecorded.Add(1)
			case err == nil && res.Outcome.Kind == dedupstore.Unknown:
				c.unknown.Add(1)
			case err == nil:
				c.stored.Add(1)
			}
		})
	}
	c.ready.Wait()
}

// want ends the runs, and wants so many of them to be stored and none to be cancelled.
func (c *crowd) want(stored int) {
	c.t.Helper()
	close(c.goOn)
	c.all.Wait()
	if c.stored.Load() != int64(stored) || c.cancelled.Load() != 0 {
		c.t.Errorf("%d outcomes were stored, %d not recorded, %d are unknown, and %d runs were cancelled; want %d stored",
			c.stored.Load(), c.unrecorded.Load(), c.unknown.Load(), c.cancelled.Load(), stored)
	}
}

func numbered(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(prefix, i))
	}
	return ids
}

// behindProxy is a store whose connections go through a proxy, with a limit that no case reaches.
func behindProxy(t *testing.T) (*Store, *mysqltest.Proxy) {
	t.Helper()
	proxy := mysqltest.StartProxy(t, mysqltest.Shared(t).Addr())
	db := newDB(t, func(c *mysql.Config) { c.Addr = proxy.Addr })
	db.SetMaxOpenConns(40)
	return newStore(t, db), proxy
}

func TestGuard_OutcomesBesideLockedRecordsAreStored(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.SetMaxOpenConns(40)
	s := newStore(t, db)
	locked, others := newCrowd(t, s, oncemill.Retake), newCrowd(t, s, oncemill.Retake)
	others.guard, others.goOn = locked.guard, locked.goOn // they end together
	others.start(numbered("other-", 60)...)
	locked.start(numbered("locked-", 10)...)
	var releases []func()
	for _, id := range numbered("locked-", 10) {
		releases = append(releases, lock(t, s, request(id).Key))
	}
	release := func() {
		for _, end := range releases {
			end()
		}
	}
	defer release()
	others.want(60)
	release()
	locked.all.Wait()
	if n := locked.stored.Load(); n != 10 {
		t.Errorf("of 10 outcomes whose records were locked %d were stored, although the locks ended within the leases", n)
	}
}

// The first renewals of ten runs get as far as their commit, and then the server hears nothing of their connection.
func TestGuard_OutcomesBesideAHostThatVanishedAreStored(t *testing.T) {
	t.Parallel()
	s, proxy := behindProxy(t)
	locked, others := newCrowd(t, s, oncemill.Retake), newCrowd(t, s, oncemill.Retake)
	others.guard, others.goOn = locked.guard, locked.goOn // they end together
	locked.start(numbered("locked-", 10)...)
	over := proxy.Stall("autocommit = 1", false)
	defer over()
	stalled(t, proxy)
	others.start(numbered("other-", 50)...)
	others.want(50)
	locked.all.Wait()
	for _, id := range numbered("other-", 50) {
		claim(t, s, request(id), dedupstore.Done)
	}
}

// The server has committed, nothing is locked, and one answer does not come.
func TestGuard_LeasesBesideALateAnswerLast(t *testing.T) {
	t.Parallel()
	s, proxy := behindProxy(t)
	c := newCrowd(t, s, oncemill.Retake)
	c.start(numbered("", 20)...)
	over := proxy.Stall("autocommit = 1", true)
	defer over()
	stalled(t, proxy)
	<-time.After(2 * stuckLease)
	c.want(20)
}

func stalled(t *testing.T, proxy *mysqltest.Proxy) {
	t.Helper()
	for end := time.Now().Add(time.Minute); proxy.Stalled() == 0; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no commit met the stall")
		}
	}
}

// A run of an inbox hangs in its commit, and has its record locked. The heartbeats of others travel with its own.
func TestInbox_LeasesBesideACommitThatHangsLast(t *testing.T) {
	t.Parallel()
	for _, expired := range []oncemill.ExpiredLease{oncemill.Retake, oncemill.Park} {
		t.Run(string(expired), func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			db.SetMaxOpenConns(40)
			s := newStore(t, db)
			var stuck atomic.Pointer[sql.Tx]
			s.commit = func(ctx context.Context, tx *sql.Tx) error {
				if stuck.Load() != tx {
					return commit(ctx, tx)
				}
				<-ctx.Done()
				return ctx.Err()
			}
			c := newCrowd(t, s.Inbox(), expired)
			var hung sync.WaitGroup
			hung.Go(func() {
				_, _ = c.guard.Run(t.Context(), oncemill.Call{Key: request("stuck").Key},
					func(ctx context.Context) (dedupstore.Outcome, error) {
						stuck.Store(Tx(ctx))
						return dedupstore.Outcome{}, effect(ctx, "stuck")
					})
			})
			c.start(numbered("other-", 10)...)
			<-time.After(2 * stuckLease)
			c.want(10)
			hung.Wait()
		})
	}
}

// Copies of a message whose record is locked keep coming.
func TestGuard_ClaimsBesideCopiesOfALockedMessageGoOn(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	defer lock(t, s, runOf(t, s, "locked").Key)()
	c := newCrowd(t, s, oncemill.Retake)
	ctx, stop := context.WithCancel(t.Context())
	for range 8 {
		c.all.Go(func() {
			for ctx.Err() == nil {
				_, _ = c.guard.Run(ctx, oncemill.Call{Key: request("locked").Key, MaxWait: time.Second},
					func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil })
			}
		})
	}
	var others sync.WaitGroup
	for w := range 8 {
		others.Go(func() {
			for i := range 50 {
				began := time.Now()
				_, err := c.guard.Run(t.Context(), oncemill.Call{Key: request(fmt.Sprint(w, "-", i)).Key},
					func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil })
				if took := time.Since(began); err != nil || took > stuckLease {
					t.Errorf("a run beside copies of a locked message took %v and returned %v", took, err)
				}
			}
		})
	}
	others.Wait()
	stop()
	c.all.Wait()
}
