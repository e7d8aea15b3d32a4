package redisstore

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// impatient is a client that gives up soon.
func impatient(t testing.TB, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, DialerRetries: 1, DialTimeout: time.Second, ReadTimeout: 2 * time.Second,
		MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 2 * time.Millisecond,
	})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// eventually repeats a step until it works.
func eventually(t testing.TB, step func() error) {
	t.Helper()
	deadline := time.After(testserver.WaitLimit)
	for {
		err := step()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestStore_LostReplyToClaimGivesTheSameFence(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	proxy := redistest.StartProxy(t, server.Addr)
	s := newStore(t, impatient(t, proxy.Addr))
	claim(t, s, request("first"), dedupstore.AcquiredRun) // the server has been looked at, the script is loaded

	dropNext := func() {
		first := proxy.Exchanges() + 1
		proxy.Inject(func(e redistest.Exchange) redistest.Fault {
			return redistest.Fault{DropReply: e.Has("evalsha") && e.Number <= first}
		})
	}
	r := request("lost")
	dropNext()
	a := claim(t, s, r, dedupstore.AcquiredRun) // the client repeats it
	if proxy.Dropped() != 1 {
		t.Fatalf("%d replies were dropped, want 1", proxy.Dropped())
	}
	if a.Found != dedupstore.Running || a.Claim.Attempt != 1 {
		t.Errorf("the repeated claim found %s at attempt %d, want its own run at 1", a.Found, a.Claim.Attempt)
	}
	if again := claim(t, s, r, dedupstore.AcquiredRun); again.Claim != a.Claim {
		t.Errorf("asked again, the claim is %+v, want %+v", again.Claim, a.Claim)
	}
	dropNext()
	settle(t, s, a.Claim, producing(dedupstore.Outcome{Kind: dedupstore.Succeeded}, dedupstore.Produced{ID: "1"}))
	dropNext()
	settle(t, s, a.Claim, dedupstore.Published{Retention: time.Hour})
	if proxy.Dropped() != 3 {
		t.Fatalf("%d replies were dropped, want 3", proxy.Dropped())
	}
	claim(t, s, r, dedupstore.Done)
}

func TestStore_LateCopyOfAClaimChangesNothing(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	r := request("late")
	settle(t, s, claim(t, s, r, dedupstore.AcquiredRun).Claim, dedupstore.Release{})
	before := dump(t, rdb, s.name(r.Key))
	claim(t, s, r, dedupstore.Busy)
	if dump(t, rdb, s.name(r.Key)) != before {
		t.Error("the late copy changed the record")
	}
	if a := claim(t, s, request("late"), dedupstore.AcquiredRun); a.Claim.Attempt != 2 {
		t.Errorf("the next owner has attempt %d, want 2", a.Claim.Attempt)
	}
}

func TestStore_ZombieIsRefused(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	zombie := claim(t, s, request("z"), dedupstore.AcquiredRun)
	expire(t, s, rdb, key("z"))
	a := claim(t, s, request("z"), dedupstore.AcquiredRun)
	if a.Found != dedupstore.Running || a.Claim.Fence <= zombie.Claim.Fence || a.Claim.Attempt != 2 {
		t.Errorf("the takeover is %+v", a)
	}
	for name, err := range map[string]error{
		"extend":    dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: zombie.Claim, Lease: time.Minute, Started: true}),
		"finish":    dedupstore.SettleOne(t.Context(), s, zombie.Claim, succeeded("z")),
		"release":   dedupstore.SettleOne(t.Context(), s, zombie.Claim, dedupstore.Release{}),
		"published": dedupstore.SettleOne(t.Context(), s, zombie.Claim, dedupstore.Published{Retention: time.Hour}),
	} {
		if !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("%s: error is %v, want ErrClaimLost", name, err)
		}
	}
	settle(t, s, a.Claim, succeeded("ok"))
}

func TestStore_OwnersFormerFenceIsRefused(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	r := request("former")
	former := claim(t, s, r, dedupstore.AcquiredRun).Claim
	expire(t, s, rdb, r.Key)
	claim(t, s, request("former"), dedupstore.AcquiredRun)
	expire(t, s, rdb, r.Key)
	now := claim(t, s, r, dedupstore.AcquiredRun).Claim
	for name, err := range map[string]error{
		"extend":  dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: former, Lease: time.Minute, Started: true}),
		"finish":  dedupstore.SettleOne(t.Context(), s, former, succeeded("z")),
		"release": dedupstore.SettleOne(t.Context(), s, former, dedupstore.Release{}),
	} {
		if !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("%s with the former fence: error is %v, want ErrClaimLost", name, err)
		}
	}
	settle(t, s, now, succeeded("ok"))
}

func TestStore_RedisDownAtStartIsAnErrorUntilItIsUp(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, ownServer(t).Addr)
	proxy.Cut()
	s := newStore(t, impatient(t, proxy.Addr))
	for range 3 {
		if _, err := dedupstore.ClaimOne(t.Context(), s, request("down")); err == nil || errors.Is(err, dedupstore.ErrClaimLost) {
			t.Fatalf("error is %v, want one of the network", err)
		}
	}
	proxy.Heal()
	eventually(t, func() error { _, err := dedupstore.ClaimOne(t.Context(), s, request("down")); return err })
}

func TestStore_ServerKilledInFlightForgetsNothingWithAppendFsyncAlways(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newStore(t, impatient(t, server.Addr))
	a := claim(t, s, request("1"), dedupstore.AcquiredRun)
	server.Kill()
	for op, err := range everyOperation(t.Context(), s, key("1")) {
		if err == nil || errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("%s on a dead server: error is %v, want one of the network", op, err)
		}
	}
	server.Restart()
	eventually(t, func() error {
		return dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: a.Claim, Lease: time.Minute, Started: true})
	})
	claim(t, s, request("1"), dedupstore.Busy)
	settle(t, s, a.Claim, succeeded("kept"))
	if got := claim(t, s, request("1"), dedupstore.Done); string(got.Outcome.Result) != "kept" {
		t.Errorf("the outcome is %+v", got.Outcome)
	}
}

func TestStore_DeadlineEndsAnOperationThatGetsNoReply(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, ownServer(t).Addr)
	s := newStore(t, impatient(t, proxy.Addr))
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	proxy.Inject(func(redistest.Exchange) redistest.Fault { return redistest.Fault{DelayReply: time.Minute} })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	// The connection has the deadline, too, and may be the first to say so.
	if _, err := dedupstore.ClaimOne(ctx, s, request("2")); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error is %v, want the end of the context", err)
	}
}

func TestStore_AtMaxmemoryKnownKeysGoOnAndNewOnesAreRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	rdb := server.Client()
	s := newStore(t, rdb)
	finishing, releasing, publishing, extending, taken, exhausted := request("f"), request("r"), request("p"), request("e"), request("t"), request("x")
	exhausted.MaxAttempts = 1
	f := claim(t, s, finishing, dedupstore.AcquiredRun).Claim
	r := claim(t, s, releasing, dedupstore.AcquiredRun).Claim
	p := claim(t, s, publishing, dedupstore.AcquiredRun).Claim
	settle(t, s, p, producing(dedupstore.Outcome{Kind: dedupstore.Succeeded}, dedupstore.Produced{ID: "1", Payload: []byte("x")}))
	e := claim(t, s, extending, dedupstore.AcquiredRun).Claim
	claim(t, s, taken, dedupstore.AcquiredRun)
	claim(t, s, exhausted, dedupstore.AcquiredRun)
	expire(t, s, rdb, taken.Key)
	expire(t, s, rdb, exhausted.Key)

	// The limit is now far below what the server needs for itself.
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "100kb").Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), "any", "x", 0).Err(); !redis.IsOOMError(err) {
		t.Fatalf("the server is not at maxmemory: %v", err)
	}
	if _, err := dedupstore.ClaimOne(t.Context(), s, request("new")); !errors.Is(err, dedupstore.ErrFull) {
		t.Errorf("claim of a new key: error is %v, want ErrFull", err)
	}
	if rdb.Exists(t.Context(), s.name(key("new"))).Val() != 0 {
		t.Error("the refused claim left a record")
	}
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: e, Lease: time.Minute, Started: true}); err != nil {
		t.Errorf("extend: %v", err)
	}
	settle(t, s, f, succeeded(strings.Repeat("r", 10_000)))
	claim(t, s, finishing, dedupstore.Done)
	settle(t, s, r, dedupstore.Release{Reason: "again"})
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: r, Lease: time.Minute, Started: true}); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("extend of a claim that was given back: error is %v, want ErrClaimLost", err)
	}
	settle(t, s, p, dedupstore.Published{Retention: time.Hour})
	claim(t, s, publishing, dedupstore.Done)
	taken.Owner, exhausted.Owner = "owner-of-takeover", "owner-of-exhausted"
	claim(t, s, taken, dedupstore.AcquiredRun)
	claim(t, s, exhausted, dedupstore.AcquiredPublish)
}

// Connections to a master that has become a replica stay open, and it may lack what the new one has.
func TestStore_AFormerMasterIsNotBelievedThatAClaimIsLost(t *testing.T) {
	t.Parallel()
	former := ownServer(t).Client()
	there, now := newStore(t, former), newStore(t, redistest.Start(t).Client())
	there.config.Prefix = now.config.Prefix
	claim(t, there, request("known"), dedupstore.AcquiredRun) // of somebody, before
	if err := former.ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"known", "new"} {
		c := claim(t, now, request(id), dedupstore.AcquiredRun).Claim
		for _, s := range []dedupstore.Settlement{succeeded(""), dedupstore.Release{}, dedupstore.Published{Retention: time.Hour}} {
			if err := dedupstore.SettleOne(t.Context(), there, c, s); !redis.HasErrorPrefix(errors.Unwrap(err), "READONLY") {
				t.Errorf("%s: a former master answers %T with %v, want READONLY", id, s, err)
			}
		}
		if err := dedupstore.ExtendOne(t.Context(), there, dedupstore.Extension{Claim: c, Lease: time.Minute, Started: true}); !redis.HasErrorPrefix(errors.Unwrap(err), "READONLY") {
			t.Errorf("%s: a former master answers a heartbeat with %v, want READONLY", id, err)
		}
		settle(t, now, c, succeeded(""))
	}
}

func TestStore_ARecordOfAnotherIsKeptAsLongAsBefore(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	former := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	settle(t, s, former, dedupstore.Release{})
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	name := s.name(former.Key)
	for _, ttl := range []time.Duration{time.Hour, 0} {
		if err := rdb.Persist(t.Context(), name).Err(); err != nil {
			t.Fatal(err)
		}
		if ttl > 0 {
			rdb.PExpire(t.Context(), name, ttl)
		}
		before := must(rdb.PExpireTime(t.Context(), name).Result())(t)
		if err := dedupstore.SettleOne(t.Context(), s, former, succeeded("")); !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("error is %v, want ErrClaimLost", err)
		}
		after := must(rdb.PExpireTime(t.Context(), name).Result())(t)
		if d := (after - before).Abs(); d > 10*time.Millisecond || ttl == 0 && d != 0 {
			t.Errorf("the record ends at %v, before at %v", after, before)
		}
	}
}

func TestScripts_RefusalsBeginWithTheirCode(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client()
	for raised, want := range map[string]string{
		"@user_script: 31: -OOM command not allowed": "OOM command not allowed", // Redis 6.2
		"READONLY You can't write":                   "READONLY You can't write",
	} {
		err := rdb.Eval(t.Context(), source("record")+"return refusal({err = ARGV[1]})", []string{"none"}, raised).Err()
		if err == nil || err.Error() != want {
			t.Errorf("%q became %v, want %q", raised, err, want)
		}
	}
}
