package pgstore

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/crowdtest"
)

// A run of an inbox hangs in its commit, and has its record locked. The heartbeats of fifty others travel with its own.
func TestInbox_LeasesBesideACommitThatHangsLast(t *testing.T) {
	t.Parallel()
	for _, expired := range []oncemill.ExpiredLease{oncemill.Retake, oncemill.Park} {
		t.Run(string(expired), func(t *testing.T) {
			t.Parallel()
			const others = 50
			direct := newPool(t)
			newStore(t, direct, Config{})
			pool, p := behind(t, direct, func(c *pgxpool.Config) { c.MaxConns = 2 * others }) // a part is for heartbeats
			c := crowdtest.New(t, unmigrated(t, pool, Config{}).Inbox(), expired)
			var stuck atomic.Bool
			p.inject(func(_ int, request string) fault {
				if commits(request) && stuck.CompareAndSwap(true, false) {
					return lateRequest
				}
				return faithful
			})
			c.Start(crowdtest.Numbered("other-", others)...)
			stuck.Store(true)
			var hung sync.WaitGroup
			hung.Go(func() {
				_, _ = c.Run(t.Context(), "stuck", func(ctx context.Context) (dedupstore.Outcome, error) {
					_, err := Tx(ctx).Exec(ctx, "INSERT INTO effects VALUES ('stuck', 1)")
					return dedupstore.Outcome{}, err
				})
			})
			lasts(2 * crowdtest.Lease)
			if stuck.Load() {
				t.Error("no commit hangs")
			}
			c.Want(others)
			p.release()
			hung.Wait()
			for _, id := range crowdtest.Numbered("other-", others) {
				claim(t, unmigrated(t, direct, Config{}), claimtest.Request(id), dedupstore.Done)
			}
		})
	}
}

// What is no plain success is settled by two requests, and the record is locked between them.
func TestSettle_WhoVanishesBetweenTwoRequestsKeepsNoRecord(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	s := newStore(t, direct, Config{})
	pool, p := behind(t, direct)
	c := runOf(t, s, "1")
	var stuck atomic.Bool
	p.inject(func(_ int, request string) fault {
		if strings.Contains(request, "string_to_array") && stuck.CompareAndSwap(false, true) {
			return lateRequest
		}
		return faithful
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	release := dedupstore.Release{Reason: "later"}
	if err := dedupstore.SettleOne(ctx, unmigrated(t, pool, Config{}), c, release); err == nil || !stuck.Load() {
		t.Fatalf("a settlement that got no answer returned %v; it was stuck: %t", err, stuck.Load())
	}
	if err := dedupstore.SettleOne(t.Context(), s, c, release); err == nil {
		t.Error("the record is not locked")
	}
	until(t, "the record", func() bool { return dedupstore.SettleOne(t.Context(), s, c, release) == nil })
}
