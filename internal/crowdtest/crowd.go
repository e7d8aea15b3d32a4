// Package crowdtest is for tests of stores under a guard: runs beside what is stuck, and steps in an inbox.
package crowdtest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
)

// Lease is as short as a machine that is busy with other tests allows.
const Lease = 12 * time.Second

// A Crowd is what became of runs beside one that is stuck.
type Crowd struct {
	Guard *oncemill.Guard

	t     *testing.T
	all   sync.WaitGroup
	ready sync.WaitGroup
	goOn  chan struct{}

	stored, unrecorded, unknown, cancelled atomic.Int64
}

// New returns one whose runs have leases of Lease.
func New(t *testing.T, s dedupstore.Store, expired oncemill.ExpiredLease) *Crowd {
	t.Helper()
	g, err := oncemill.NewGuard(s, oncemill.Policy{
		Lease: Lease, ExpiredLease: expired, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return &Crowd{t: t, Guard: g, goOn: make(chan struct{})}
}

// Beside returns another crowd, whose runs have the same guard, and end with those of this one.
func (c *Crowd) Beside() *Crowd { return &Crowd{t: c.t, Guard: c.Guard, goOn: c.goOn} }

// Run makes a run as a worker does, which gets a message again that a busy machine did not claim in time, and waits for
// a claim whose answer it did not get.
func (c *Crowd) Run(ctx context.Context, id string, handle func(context.Context) (dedupstore.Outcome, error)) (
	res oncemill.Result, err error,
) {
	for {
		res, err = c.Guard.Run(ctx, oncemill.Call{Key: claimtest.Key(id), MaxWait: 2 * Lease}, handle)
		if res.Status != oncemill.StatusStoreDown || ctx.Err() != nil {
			return res, err
		}
	}
}

// Start begins runs, and returns when their handlers have begun. They end with Want, or when their
// context ends.
func (c *Crowd) Start(ids ...string) {
	c.ready.Add(len(ids))
	for _, id := range ids {
		c.all.Go(func() {
			res, err := c.Run(c.t.Context(), id,
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
			switch {
			case res.Status == oncemill.StatusUnrecorded:
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

// Want ends the runs, and wants so many of them to be stored and none to be cancelled.
func (c *Crowd) Want(stored int) {
	c.t.Helper()
	close(c.goOn)
	if c.Stored() != stored || c.cancelled.Load() != 0 {
		c.t.Errorf("%d outcomes are stored, %d not recorded, %d unknown, and %d runs were cancelled; want %d stored",
			c.stored.Load(), c.unrecorded.Load(), c.unknown.Load(), c.cancelled.Load(), stored)
	}
}

// Stored waits for the end of all runs, and returns how many outcomes were stored.
func (c *Crowd) Stored() int {
	c.all.Wait()
	return int(c.stored.Load())
}

// Numbered are so many IDs.
func Numbered(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(prefix, i))
	}
	return ids
}
