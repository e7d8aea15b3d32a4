package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// messages makes keys of their own.
func messages(name string, n int) []dedupstore.Key {
	list := make([]dedupstore.Key, n)
	for i := range list {
		list[i] = dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: fmt.Sprintf("%s-%d", name, i)}
	}
	return list
}

// inRedis is the name of the key's record.
func inRedis(k dedupstore.Key) string { return "oncemill:" + k.String() }

// A courier delivers messages that a test chooses, one delivery at a time, to a guard over a ledger over a store in
// Redis.
type courier struct {
	*ledger.Ledger
	store      *redisstore.Store
	guard      *oncemill.Guard
	gate       sync.RWMutex // held for reading by each delivery: who locks it stops the world
	deliveries atomic.Int64
}

func newCourier(t *testing.T, rdb redis.UniversalClient, c redisstore.Config, lease time.Duration) *courier {
	t.Helper()
	store, err := redisstore.New(rdb, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	d := &courier{Ledger: ledger.New(store), store: store}
	d.guard, err = oncemill.NewGuard(d.Ledger, oncemill.Policy{
		Lease: lease, MaxAttempts: 1000, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// once delivers a message one time. The handler makes its effect, then waits for the channel, if there is one.
func (d *courier) once(ctx context.Context, k dedupstore.Key, done <-chan struct{}) error {
	d.gate.RLock()
	defer d.gate.RUnlock()
	d.deliveries.Add(1)
	d.Ask(k.ID)
	_, err := d.guard.Run(ctx, oncemill.Call{Key: k}, func(ctx context.Context) (dedupstore.Outcome, error) {
		d.Does(oncemill.FromContext(ctx))
		if done != nil {
			<-done
		}
		return dedupstore.Outcome{Result: []byte(k.ID)}, nil
	})
	if err == nil {
		d.Over(k.ID)
	}
	return err
}

// all delivers each message until it is acknowledged, by a number of workers.
func (d *courier) all(ctx context.Context, list []dedupstore.Key, workers int) {
	each(list, workers, func(k dedupstore.Key) {
		for d.once(ctx, k, nil) != nil && ctx.Err() == nil {
			lasts(10 * time.Millisecond)
		}
	})
}

// each calls a function for every key of a list, by a number of workers.
func each(list []dedupstore.Key, workers int, f func(dedupstore.Key)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(list); i = int(next.Add(1)) - 1 {
				f(list[i])
			}
		})
	}
	wg.Wait()
}

// granted returns the keys of all runs that the store has granted, and of those whose outcome it has confirmed.
func granted(l *ledger.Ledger) (all, finished []dedupstore.Key) {
	for r := range l.Runs {
		all = append(all, r.Key)
		if r.End == ledger.Recorded {
			finished = append(finished, r.Key)
		}
	}
	return all, finished
}

// repeats counts the effects after the first of their message by what their claims found.
func (d *courier) repeats() map[dedupstore.State]int {
	found := map[dedupstore.State]int{}
	for _, a := range d.Messages() {
		before := false
		for _, r := range a.Runs {
			if r.Did() && before {
				found[r.Found]++
			}
			before = before || r.Did()
		}
	}
	return found
}

// replicationRefusals is how many claims were refused because too few replicas had them.
func (d *courier) replicationRefusals() (n int) {
	for _, f := range d.Failures() {
		if errors.Is(f.Err, dedupstore.ErrNotDurable) {
			n += f.Times
		}
	}
	return n
}

func TestReplication_WithTooFewReplicasClaimsFailClosedAndGoOnByThemselves(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--min-replicas-to-write", "1")
	host, port, _ := strings.Cut(master.Addr, ":")
	replica := redistest.Start(t, "--replicaof", host, port)
	master.AwaitReplicas(1)
	c := newCourier(t, master.Client(), redisstore.Config{}, time.Minute)
	before, during, running := messages("before", 100), messages("during", 50), messages("running", 1)
	c.all(t.Context(), before, 8)

	// A run is under way when the replica goes: its outcome is stored when it is back.
	settle, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- c.once(t.Context(), running[0], settle) }()
	until(t, "the run to begin", func() bool { return c.Done() > len(before) })
	replica.Kill()
	rdb := master.Client()
	until(t, "the master to notice", func() bool {
		return redis.HasErrorPrefix(rdb.Set(t.Context(), "probe", "", time.Second).Err(), "NOREPLICAS")
	})
	close(settle)
	calls := c.Done()
	for _, k := range during {
		if err := c.once(t.Context(), k, nil); !redis.HasErrorPrefix(err, "NOREPLICAS") {
			t.Fatalf("a claim without a replica: %v, want NOREPLICAS", err)
		}
	}
	for _, k := range before { // finished outcomes can be read all the same, or are refused: nothing runs
		c.once(t.Context(), k, nil)
	}
	if n := c.Done() - calls; n != 0 {
		t.Errorf("%d handler calls without a replica", n)
	}
	replica.Restart()
	c.all(t.Context(), slices.Concat(during, before), 8)
	if err := <-ended; err != nil {
		t.Errorf("the run that was under way: %v", err)
	}
	b := c.Balance(int(c.deliveries.Load()))
	b.MustExplain(t)
	if b.Effects != len(before)+len(during)+len(running) {
		t.Errorf("%d effects, want one of each message", b.Effects)
	}
}

func TestReplication_TheBarrierOfAClusterAsksTheReplicaOfTheKey(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client()
	c := newCourier(t, rdb, redisstore.Config{Replicas: 1}, time.Minute)
	frozen := inSlots(8, 16384/3)
	var others []dedupstore.Key
	for _, k := range messages("other", 60) {
		if redistest.Slot(inRedis(k)) > 16384/3 {
			others = append(others, k)
		}
	}
	half := len(others) / 2
	c.all(t.Context(), others[:half], 4)

	replica := cluster.ReplicaOf(inRedis(frozen[0])).Process()
	if err := replica.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { replica.Resume() })
	calls := c.Done()
	var taken sync.WaitGroup
	probe, frozen := frozen[0], frozen[1:]
	taken.Go(func() { c.all(t.Context(), frozen, 4) })
	until(t, "claims that are refused", func() bool { return c.replicationRefusals() >= 8 || c.Done() > calls })
	began := time.Now()
	c.all(t.Context(), others, 4)
	t.Logf("%d messages at the other masters took %v", len(others), time.Since(began).Round(time.Millisecond))
	if n := c.Done() - calls; n != len(others)-half {
		t.Errorf("%d handlers began, want the %d of the other masters", n, len(others)-half)
	}
	_, err := dedupstore.ClaimOne(t.Context(), c, clusterRequest(probe))
	if !errors.Is(err, dedupstore.ErrNotDurable) {
		t.Errorf("a claim whose replica is frozen: %v, want ErrNotDurable", err)
	}
	if err := replica.Resume(); err != nil {
		t.Fatal(err)
	}
	taken.Wait() // by itself
	c.all(t.Context(), []dedupstore.Key{probe}, 1)
	for r := range c.Runs {
		if r.Attempt != 1 {
			t.Errorf("%s was granted as attempt %d", r.Key, r.Attempt)
		}
	}
	b := c.Balance(int(c.deliveries.Load()))
	b.MustExplain(t)
	if b.Effects != len(frozen)+len(others)+1 {
		t.Errorf("%d effects of %d messages", b.Effects, len(frozen)+len(others)+1)
	}
}
