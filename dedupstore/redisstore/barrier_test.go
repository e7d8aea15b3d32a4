package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func TestBarrier_RefusedClaimIsGivenBackUncountedAndItsOwnerNeverRuns(t *testing.T) {
	t.Parallel()
	master := ownServer(t)
	s := must(New(master.Client(), Config{Replicas: 1}))(t)
	s.barrier.timeout = 50 * time.Millisecond
	r := request("k")
	for range 3 {
		if _, err := dedupstore.ClaimOne(t.Context(), s, request("k")); !errors.Is(err, dedupstore.ErrNotDurable) ||
			!strings.Contains(err.Error(), "0 replicas have it, want 1") {
			t.Fatalf("without a replica the error is %v", err)
		}
	}
	for _, result := range s.Claim(t.Context(), []dedupstore.Request{r, request("other")}) {
		if !errors.Is(result.Err, dedupstore.ErrNotDurable) {
			t.Errorf("without a replica a batch is answered %+v", result)
		}
	}
	claim(t, s, r, dedupstore.Busy) // a late copy of its release could meet its run
	host, port, _ := net.SplitHostPort(master.Addr)
	redistest.Start(t, "--replicaof", host+" "+port)
	var a dedupstore.Answer
	eventually(t, func() (err error) {
		a, err = dedupstore.ClaimOne(t.Context(), s, request("k"))
		return err
	})
	if a.Status != dedupstore.AcquiredRun || a.Claim.Attempt != 1 || a.Claim.Returned != 0 {
		t.Errorf("with a replica the claim is answered %+v", a)
	}
	settle(t, s, a.Claim, succeeded(""))
}

// An ACL of a node may lack WAIT. A claim that has been made all the same would count as an attempt, and after some of them the
// message would end without a run.
func TestBarrier_ClaimIsGivenBackUncountedIfTheServerRefusesToWait(t *testing.T) {
	t.Parallel()
	rdb := as(t, ownServer(t), "hasty", "-wait")
	s, loose := must(New(rdb, Config{Prefix: "test-hasty", Replicas: 1}))(t), must(New(rdb, Config{Prefix: "test-hasty"}))(t)
	check := func(err error) {
		t.Helper()
		if !errors.Is(err, dedupstore.ErrNotDurable) || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("error %v, want one that is dedupstore.ErrNotDurable and says why", err)
		}
	}
	for range 3 { // by script and plain, of keys that are known and are not
		_, err := dedupstore.ClaimOne(t.Context(), s, request("a"))
		check(err)
		_, err = dedupstore.ClaimOne(t.Context(), s, request("b"))
		check(err)
		for _, result := range s.Claim(t.Context(), []dedupstore.Request{request("a"), request("b"), request("c"), request("c")}) {
			if result.Answer.Status != dedupstore.Busy { // c, whose lease is live while its twin is asked
				check(result.Err)
			}
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		a := claim(t, loose, request(id), dedupstore.AcquiredRun)
		if a.Claim.Attempt != 1 {
			t.Errorf("%s: attempt %d, though nobody ran before", id, a.Claim.Attempt)
		}
		settle(t, loose, a.Claim, succeeded(""))
		claim(t, s, request(id), dedupstore.Done) // needs no replicas
	}
}

// Claims queue behind others that wait for replicas, and ask twice about keys that are known. A claim that was granted
// meanwhile must be given back, though its caller has no more time: it would count as an attempt.
func TestBarrier_ClaimWhoseCallerHasGoneIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, heeds := range map[string]bool{"client that heeds contexts": true, "client that does not": false} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{Addr: ownServer(t).Addr, ContextTimeoutEnabled: heeds})
			t.Cleanup(func() { rdb.Close() })
			s := must(New(rdb, Config{Replicas: 1}))(t)
			s.barrier.timeout = 1500 * time.Millisecond
			loose := must(New(rdb, Config{}))(t)
			settle(t, loose, claim(t, loose, request("known"), dedupstore.AcquiredRun).Claim, dedupstore.Release{Uncounted: true})
			must(s.Check(t.Context()))(t)
			requests := []dedupstore.Request{request("known")}
			for i := range 2 {
				requests = append(requests, request(fmt.Sprint(i)))
			}
			var group sync.WaitGroup
			for _, r := range requests {
				group.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 2750*time.Millisecond)
					defer cancel()
					if a, err := dedupstore.ClaimOne(ctx, s, r); err == nil {
						t.Errorf("without a replica a claim is answered %+v", a)
					}
				})
			}
			group.Wait()
			for _, r := range requests {
				if a := claim(t, loose, request(r.Key.ID), dedupstore.AcquiredRun); a.Claim.Attempt != 1 {
					t.Errorf("%s: attempt %d, though nobody ran before", r.Key.ID, a.Claim.Attempt)
				}
			}
		})
	}
}

// WAIT waits for what its own connection has written. So a claim that is asked for again, and changes nothing, is written
// again where replicas have to have it, and only there.
func TestBarrier_ClaimThatIsAskedForAgainIsWrittenAgain(t *testing.T) {
	t.Parallel()
	master := ownServer(t)
	rdb := master.Client()
	host, port, _ := net.SplitHostPort(master.Addr)
	redistest.Start(t, "--replicaof", host+" "+port)
	written := func() string {
		return regexp.MustCompile(`cmdstat_pexpire:calls=\d+`).FindString(rdb.Info(t.Context(), "commandstats").Val())
	}
	for replicas, rewrites := range map[int]bool{0: false, 1: true} {
		s := must(New(rdb, Config{Prefix: fmt.Sprint("again-", replicas), Replicas: replicas}))(t)
		eventually(t, func() error {
			_, err := dedupstore.ClaimOne(t.Context(), s, request("probe"))
			return err
		})
		r := request("k")
		claim(t, s, r, dedupstore.AcquiredRun)
		before := written()
		claim(t, s, r, dedupstore.AcquiredRun)
		if got := written() != before; got != rewrites {
			t.Errorf("with %d replicas it was written again: %v", replicas, got)
		}
	}
}
