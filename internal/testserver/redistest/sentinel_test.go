package redistest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/redis/go-redis/v9"
)

func TestRedisSentinel_HeldWritesAreLostInAFailoverAndTheClientGoesOn(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t)
	rdb := s.Client()
	if err := rdb.Set(t.Context(), "replicated", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := s.Master()
	if n, err := old.Client().Wait(t.Context(), 1, testserver.WaitLimit).Result(); n < 1 || err != nil {
		t.Fatalf("WAIT gave %d, %v", n, err)
	}
	if a := s.MasterAddr(); a == old.Addr {
		t.Errorf("clients reach the master at %s, past its link", a)
	}
	s.HoldReplication()
	if err := rdb.Set(t.Context(), "held", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n := rdb.Wait(t.Context(), 1, 50*time.Millisecond).Val(); n != 0 {
		t.Errorf("%d replicas acknowledged what they cannot have", n)
	}
	if killed := s.KillMaster(); killed != old {
		t.Fatalf("killed %s, want %s", killed.Addr, old.Addr)
	}
	s.ReleaseReplication()
	start := time.Now()
	if next := s.AwaitMaster(old); next == old {
		t.Fatal("the master is still the old one")
	}
	t.Logf("a new master took writes after %v", time.Since(start))
	ctx, cancel := context.WithTimeout(t.Context(), testserver.WaitLimit)
	defer cancel()
	if err := testserver.Until(ctx, func() error { return rdb.Set(ctx, "after", "1", 0).Err() }); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Get(t.Context(), "replicated").Err(); err != nil {
		t.Errorf("what was replicated is not there: %v", err)
	}
	if err := rdb.Get(t.Context(), "held").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("what was held: %v, want it to be lost", err)
	}
	if err := testserver.Until(ctx, func() error {
		if n := rdb.Wait(ctx, 1, 100*time.Millisecond).Val(); n != 1 {
			return errors.New("the other replica does not follow the new master")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestRedisSentinel_ReleasedReplicationArrives(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t)
	rdb := s.Client()
	s.HoldReplication()
	s.HoldReplication() // once more changes nothing
	if err := rdb.Set(t.Context(), "k", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, replica := range s.Nodes[1:] {
		if err := replica.Client().Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("%v, want nothing", err)
		}
	}
	s.ReleaseReplication()
	if n := rdb.Wait(t.Context(), 2, testserver.WaitLimit).Val(); n != 2 {
		t.Errorf("%d replicas have the write, want 2", n)
	}
}
