package natskv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// The node that leads the bucket dies under load, five times with ONCEMILL_PROOF=1. Two owners claim each key
// at once, and ask again after errors: one of them runs, and its outcome stays.
func TestStore_LosesNothingWhenTheLeaderDies(t *testing.T) {
	t.Parallel()
	leaderDies(t, natstest.StartCluster(t, 3))
}

// With SIGKILL, and with ONCEMILL_PROOF=1 only: the program is built first.
func TestStore_LosesNothingWhenTheLeadersProcessIsKilled(t *testing.T) {
	t.Parallel()
	if !proof {
		t.Skip("without ONCEMILL_PROOF=1")
	}
	leaderDies(t, natstest.StartClusterOfProcesses(t, 3,
		testserver.BuildProgram(t, "github.com/nats-io/nats-server/v2")))
}

func leaderDies(t *testing.T, c *natstest.Cluster) {
	const workers = 8
	kills := 2
	if proof {
		kills = 5
	}
	first := newStore(t, c.JetStream(), Bucket("oncemill", 3))
	second := storeOf(t, c.JetStream(), "oncemill")
	stop := make(chan struct{})
	var group sync.WaitGroup
	var claimed, failures atomic.Int64
	var keys sync.Map // of ID: *keyOwner
	for w := range workers {
		group.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("%d-%d", w, i)
				var pair sync.WaitGroup
				one := &keyOwner{}
				keys.Store(id, one)
				for _, s := range []*Store{first, second} {
					pair.Go(func() { one.drive(t, s, id, &failures) })
				}
				pair.Wait()
				claimed.Add(1)
			}
		})
	}
	for range kills {
		until := claimed.Load() + 20
		natstest.Ask(t, "progress", func(context.Context) (struct{}, error) {
			if n := claimed.Load(); n < until {
				return struct{}{}, fmt.Errorf("%d keys of %d", n, until)
			}
			return struct{}{}, nil
		})
		node := c.KillLeader("KV_oncemill")
		c.StreamLeader("KV_oncemill")
		c.Restart(node)
		c.AwaitCurrent("KV_oncemill")
	}
	close(stop)
	group.Wait()
	var all []dedupstore.Key
	for id := range keys.Range {
		all = append(all, key(id.(string)))
	}
	for some := range slices.Chunk(all, 100) {
		var seen []dedupstore.Record
		again(t, &failures, func(ctx context.Context) (err error) {
			seen, err = first.Look(ctx, some)
			return err
		})
		for _, r := range seen {
			one, _ := keys.Load(r.Key.ID)
			owner := one.(*keyOwner)
			if owner.runs.Load() != 1 || r.State != dedupstore.Finished || r.Fence != owner.fence.Load() {
				t.Errorf("key %s: %d runs under fence %d, and the record is %s under %d", r.Key.ID, owner.runs.Load(),
					owner.fence.Load(), r.State, r.Fence)
			}
		}
	}
	t.Logf("%d keys, %d leaders killed, %d operations failed and were asked again", len(all), kills, failures.Load())
}

// A keyOwner counts who ran a key.
type keyOwner struct {
	runs  atomic.Int64
	fence atomic.Uint64
}

// drive claims a key, finishes it if it may, and asks again after errors.
func (k *keyOwner) drive(t *testing.T, s *Store, id string, failures *atomic.Int64) {
	r := request(id)
	r.Owner, r.Lease = ids.Token(), time.Hour
	var a dedupstore.Answer
	again(t, failures, func(ctx context.Context) (err error) {
		a, err = dedupstore.ClaimOne(ctx, s, r)
		return err
	})
	if a.Status != dedupstore.AcquiredRun {
		return
	}
	k.runs.Add(1)
	k.fence.Store(a.Claim.Fence)
	again(t, failures, func(ctx context.Context) error {
		return dedupstore.SettleOne(ctx, s, a.Claim, succeeded(""))
	})
}

// again asks until there is an answer. A request to a node that dies has none, so it does not wait long for one, but
// longer each time: the machine may be slow.
func again(t *testing.T, failures *atomic.Int64, do func(ctx context.Context) error) {
	for limit := time.Second; ; limit += limit / 4 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
		err := do(ctx)
		cancel()
		if errors.Is(err, dedupstore.ErrClaimLost) {
			t.Error(err)
			return
		}
		if err == nil || !pace.Sleep(t.Context(), 5*time.Millisecond) {
			return
		}
		failures.Add(1)
	}
}
