package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/crowdtest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

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
	locked := crowdtest.New(t, s, oncemill.Retake)
	others := locked.Beside()
	others.Start(crowdtest.Numbered("other-", 60)...)
	locked.Start(crowdtest.Numbered("locked-", 10)...)
	var releases []func()
	for _, id := range crowdtest.Numbered("locked-", 10) {
		releases = append(releases, lock(t, s, request(id).Key))
	}
	release := func() {
		for _, end := range releases {
			end()
		}
	}
	defer release()
	others.Want(60)
	release()
	if n := locked.Stored(); n != 10 {
		t.Errorf("of 10 outcomes whose records were locked %d were stored, although the locks ended within the leases", n)
	}
}

// The first renewals of ten runs get as far as their commit, and then the server hears nothing of their connection.
func TestGuard_OutcomesBesideAHostThatVanishedAreStored(t *testing.T) {
	t.Parallel()
	s, proxy := behindProxy(t)
	locked := crowdtest.New(t, s, oncemill.Retake)
	others := locked.Beside()
	locked.Start(crowdtest.Numbered("locked-", 10)...)
	over := proxy.Stall("autocommit = 1", false)
	defer over()
	stalled(t, proxy)
	others.Start(crowdtest.Numbered("other-", 50)...)
	others.Want(50)
	locked.Stored()
	for _, id := range crowdtest.Numbered("other-", 50) {
		claim(t, s, request(id), dedupstore.Done)
	}
}

// The server has committed, nothing is locked, and one answer does not come.
func TestGuard_LeasesBesideALateAnswerLast(t *testing.T) {
	t.Parallel()
	s, proxy := behindProxy(t)
	c := crowdtest.New(t, s, oncemill.Retake)
	c.Start(crowdtest.Numbered("", 20)...)
	over := proxy.Stall("autocommit = 1", true)
	defer over()
	stalled(t, proxy)
	<-time.After(2 * crowdtest.Lease)
	c.Want(20)
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
			c := crowdtest.New(t, s.Inbox(), expired)
			var hung sync.WaitGroup
			hung.Go(func() {
				_, _ = c.Run(t.Context(), "stuck", func(ctx context.Context) (dedupstore.Outcome, error) {
					stuck.Store(Tx(ctx))
					return dedupstore.Outcome{}, effect(ctx, "stuck")
				})
			})
			c.Start(crowdtest.Numbered("other-", 10)...)
			<-time.After(2 * crowdtest.Lease)
			c.Want(10)
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
	c := crowdtest.New(t, s, oncemill.Retake)
	ctx, stop := context.WithCancel(t.Context())
	var copies, others sync.WaitGroup
	for range 8 {
		copies.Go(func() {
			for ctx.Err() == nil {
				_, _ = c.Guard.Run(ctx, oncemill.Call{Key: request("locked").Key, MaxWait: time.Second},
					func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil })
			}
		})
	}
	for w := range 8 {
		others.Go(func() {
			for i := range 50 {
				began := time.Now()
				_, err := c.Run(t.Context(), fmt.Sprint(w, "-", i),
					func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil })
				if took := time.Since(began); err != nil || took > crowdtest.Lease {
					t.Errorf("a run beside copies of a locked message took %v and returned %v", took, err)
				}
			}
		})
	}
	others.Wait()
	stop()
	copies.Wait()
}
