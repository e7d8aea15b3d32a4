package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func TestCluster_KeysOfAllSlotsWorkAndSurviveAFailover(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client()
	s := newStore(t, rdb)

	report := must(s.Check(t.Context()))(t)
	if len(report.Warnings) != 1 { // min-replicas-to-write
		t.Errorf("the report is %+v", report)
	}
	const keys = 300
	masters := map[string]int{}
	claims := make([]dedupstore.Claim, keys)
	for i := range keys {
		r := request(fmt.Sprintf("{same}-%d", i)) // braces in an ID do not choose the slot
		claims[i] = claim(t, s, r, dedupstore.AcquiredRun).Claim
		masters[must(rdb.MasterForKey(t.Context(), s.name(r.Key)))(t).Options().Addr]++
	}
	if len(masters) != 3 {
		t.Errorf("the keys are on %v, want all three masters", masters)
	}
	err := rdb.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() })
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys / 2 {
		settle(t, s, claims[i], succeeded("before"))
	}

	// A reply that was confirmed is on the replica once WAIT says so: then the failover loses nothing.
	err = rdb.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
		if n, err := c.Wait(ctx, 1, testserver.WaitLimit).Result(); err != nil || n < 1 {
			return fmt.Errorf("%d replicas have all writes: %w", n, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	cluster.FailOverSoon()
	cluster.Nodes[0].Kill()
	ctx, cancel := context.WithTimeout(t.Context(), testserver.WaitLimit)
	defer cancel()
	for i := range keys {
		for { // until the replica has taken over and the client knows
			err = dedupstore.SettleOne(ctx, s, claims[i], succeeded("after"))
			if err == nil || ctx.Err() != nil || errors.Is(err, dedupstore.ErrClaimLost) {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		if err != nil {
			t.Fatalf("key %d: %v", i, err)
		}
	}
	for i := range keys {
		want := "after"
		if i < keys/2 {
			want = "before"
		}
		a := claim(t, s, request(claims[i].Key.ID), dedupstore.Done)
		if string(a.Outcome.Result) != want {
			t.Errorf("key %d: the outcome is %q, want %q", i, a.Outcome.Result, want)
		}
	}
}

func TestCluster_CheckLooksAtEveryMaster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	if err := cluster.Nodes[2].Client().ConfigSet(t.Context(), "maxmemory-policy", "allkeys-random").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := newStore(t, cluster.Client()).Check(t.Context())
	var refused *dedupstore.SetupError
	if !errors.As(err, &refused) || refused.Subject != "server "+cluster.Nodes[2].Addr {
		t.Errorf("error is %v, want a SetupError for %s", err, cluster.Nodes[2].Addr)
	}
}

// A client of a single server works with the keys of one node, and messages of the others wait for ever.
func TestCluster_AClientOfASingleServerIsAWarning(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	warned := func(rdb redis.UniversalClient) bool {
		report := must(newStore(t, rdb).Check(t.Context()))(t)
		return slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.Contains(w, "redis.NewClusterClient") })
	}
	single := cluster.Nodes[0].Client()
	if !warned(single) {
		t.Error("no warning says that a Cluster needs another client")
	}
	if warned(cluster.Client()) {
		t.Error("a client of a Cluster is warned of itself")
	}
	refused := 0
	for i := range 20 {
		_, err := dedupstore.ClaimOne(t.Context(), newStore(t, single), request(strconv.Itoa(i)))
		if redis.HasErrorPrefix(err, "MOVED") {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused == 0 {
		t.Error("no claim of a single server's client was refused: the warning is not needed")
	}
}

// WAIT has no key: sent by the client of the cluster, it asks any node, which may have nothing to wait for.
func TestCluster_AClaimOfWhichTheNodeIsNotKnownIsNotGrantedByTheReplicasOfAnother(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for i := range 3 {
		key := dedupstore.Key{Tenant: "default", Group: "g", Handler: "h", ID: fmt.Sprint("o", i)}
		client := cluster.Client()
		options := *client.Options()
		slots, err := client.ClusterSlots(t.Context()).Result() //nolint:staticcheck // what the option returns is this type, and the client itself asks so
		if err != nil {
			t.Fatal(err)
		}
		var asked atomic.Int64
		options.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) {
			if asked.Add(1) == 1 {
				return nil, errors.New("not yet")
			}
			return slots, nil
		}
		rdb := redis.NewClusterClient(&options)
		t.Cleanup(func() { _ = rdb.Close() })
		store, err := New(rdb, Config{Replicas: 1, SkipCheck: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		request := dedupstore.Request{Key: key, Owner: "first-of-two-owners", Lease: time.Minute, Retention: time.Hour, MaxAttempts: 3}
		if a, err := dedupstore.ClaimOne(t.Context(), store, request); !errors.Is(err, dedupstore.ErrNotDurable) {
			t.Errorf("%s: %s, %v, want ErrNotDurable", key.ID, a.Status, err)
		}
		request.Owner = "second-of-two-owners"
		if a, err := dedupstore.ClaimOne(t.Context(), store, request); err != nil || a.Status != dedupstore.AcquiredRun || a.Claim.Attempt != 1 {
			t.Errorf("%s: %s as attempt %d, %v, want the first run", key.ID, a.Status, a.Claim.Attempt, err)
		}
	}
}
