package redistest

import (
	"fmt"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

func TestRedisCluster_ReplicaTakesOver(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	rdb := c.Client()
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	replica := c.ReplicaOf("k")
	if n := c.MasterOf("k").Client().Wait(t.Context(), 1, testserver.WaitLimit).Val(); n != 1 {
		t.Fatalf("%d replicas have the key", n)
	}
	start := time.Now()
	old := c.KillMasterOf("k")
	if next := c.AwaitMasterOf("k", old); next != replica {
		t.Errorf("%s took over, want %s", next.Addr, replica.Addr)
	}
	t.Logf("the replica took over after %v", time.Since(start))
	if err := testserver.Until(t.Context(), func() error { return rdb.Get(t.Context(), "k").Err() }); err != nil {
		t.Error(err)
	}
}

func TestRedisCluster_MovedSlotsKeepTheirKeys(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	rdb := c.Client()
	slots := map[int]bool{}
	const keys = 50
	for i := range keys {
		key := fmt.Sprintf("{%d}x", i)
		if c.MasterOf(key) == c.Nodes[0] {
			slots[Slot(key)] = true
		}
		if err := rdb.Set(t.Context(), key, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if n := rdb.ClusterKeySlot(t.Context(), key).Val(); int(n) != Slot(key) {
			t.Errorf("slot of %q is %d, want %d", key, Slot(key), n)
		}
	}
	var list []int
	for s := range slots {
		list = append(list, s)
	}
	start := time.Now()
	moved, err := c.MoveSlots(t.Context(), c.Nodes[0], c.Nodes[1], list)
	if err != nil || moved == 0 {
		t.Fatalf("%d keys moved: %v", moved, err)
	}
	t.Logf("%d slots with %d keys moved in %v", len(list), moved, time.Since(start))
	for i := range keys {
		key := fmt.Sprintf("{%d}x", i)
		if n, err := rdb.Get(t.Context(), key).Int(); n != i || err != nil {
			t.Errorf("%q is %d, %v", key, n, err)
		}
		if c.MasterOf(key) == c.Nodes[0] {
			t.Errorf("%q was not moved", key)
		}
	}
}
