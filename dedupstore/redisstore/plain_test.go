package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// learned returns the store's clock when it knows the server's time, and lets all claims that can be plain be so.
func learned(t *testing.T, s *Store) *clock {
	t.Helper()
	c := &s.lanes.of(t.Context(), "", true).clock
	for c.last.Load() == nil {
		claim(t, s, request(ids.New()), dedupstore.AcquiredRun)
	}
	c.next.Store(int64(time.Since(start) + time.Hour))
	return c
}

// plainly makes sure that the next claim is plain.
func plainly(t *testing.T, s *Store) {
	t.Helper()
	c := &s.lanes.of(t.Context(), "", true).clock
	c.last.Store(nil)
	learned(t, s)
}

func TestPlain_LeaseIsNoShorterThanAskedAndFenceNoLaterThanNow(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	for i := range 50 {
		plainly(t, s)
		r := request(fmt.Sprint("k", i))
		before := must(rdb.Time(t.Context()).Result())(t)
		a := claim(t, s, r, dedupstore.AcquiredRun)
		after := must(rdb.Time(t.Context()).Result())(t)
		rec := must(decodeRecord(must(rdb.Get(t.Context(), s.name(r.Key)).Result())(t)))(t)
		if !rec.sections.has('l') {
			t.Fatal("the claim was made by script")
		}
		if a.Claim.Fence != rec.fence || rec.fence > uint64(after.UnixMicro()) {
			t.Errorf("fence %d, in the record %d, at %d", a.Claim.Fence, rec.fence, after.UnixMicro())
		}
		if ends := rec.number('l', 0); ends < uint64(before.Add(r.Lease).UnixMicro()) {
			t.Errorf("the lease is %d µs shorter than asked", uint64(before.Add(r.Lease).UnixMicro())-ends)
		}
	}
}

func TestPlain_ForeignEmptyStringIsNotGranted(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	learned(t, s)
	if err := rdb.Set(t.Context(), s.name(key("foreign")), "", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	results := s.Claim(t.Context(), []dedupstore.Request{request("fresh"), request("foreign")})
	if results[0].Err != nil || results[1].Err == nil {
		t.Errorf("the batch was answered %+v", results)
	}
}

func TestPlain_EqualKeysOfABatchAreClaimedInOrder(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	learned(t, s)
	settle(t, s, claim(t, s, request("k"), dedupstore.AcquiredRun).Claim, dedupstore.Release{})
	first, second := request("k"), request("k")
	second.Rerun = 5 // which is never plain
	results := s.Claim(t.Context(), []dedupstore.Request{first, second})
	if results[0].Answer.Status != dedupstore.AcquiredRun || results[1].Answer.Status != dedupstore.Busy {
		t.Errorf("the batch was answered %s, %s", results[0].Answer.Status, results[1].Answer.Status)
	}
}

func TestPlain_ServersClockThatGoesBackIsFollowed(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	c := learned(t, s)
	now := c.last.Load()
	c.last.Store(&sample{now.time + 3_600_000_000, time.Now(), now.wide}) // an hour ahead
	claim(t, s, request("during"), dedupstore.AcquiredRun)
	plainly(t, s)
	r := request("after")
	r.Lease = 2 * time.Second
	claim(t, s, r, dedupstore.AcquiredRun)
	if b := claim(t, s, request("after"), dedupstore.Busy); b.Wait > 3*time.Second {
		t.Errorf("a lease of 2 s is live for %v", b.Wait)
	}
}

func TestClock_KnowsNothingWithoutAFreshNarrowSample(t *testing.T) {
	t.Parallel()
	var c clock
	now := time.Now()
	if c.known(now) {
		t.Error("without a sample the time is known")
	}
	c.learn(1_000_000, now.Add(-2*maxSampleError), now)
	if c.known(now) {
		t.Error("a sample that took long is used")
	}
	c.learn(1_000_000, now.Add(-time.Millisecond), now)
	if c.known(now) {
		t.Error("the first caller does not take a sample")
	}
	if !c.known(now) {
		t.Error("a fresh sample is not used")
	}
	if c.known(now.Add(maxSampleAge + time.Millisecond)) {
		t.Error("an old sample is used")
	}
	least, most := c.bounds(now.Add(100 * time.Millisecond))
	if least > 1_000_000+90_000 || most < 1_000_000+111_000 {
		t.Errorf("after 100 ms the bounds are %d and %d", least, most)
	}
	one, _ := c.stamp(now)
	if two, _ := c.stamp(now); two <= one {
		t.Errorf("after fence %d came %d", one, two)
	}
}

// A cutConn breaks after the first reply of a pipeline of claims; none of its kind can be written after that.
type cutConn struct {
	net.Conn
	armed, broken *atomic.Bool
	cut           bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	if bytes.Count(b, []byte("\r\nset\r\n")) > 1 {
		if c.broken.Load() {
			return 0, &net.OpError{Op: "write", Err: syscall.EPIPE}
		}
		if c.armed.CompareAndSwap(true, false) {
			c.broken.Store(true)
			c.cut = true
		}
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.cut {
		return n, err
	}
	if err != nil || n == 0 {
		return 0, io.EOF
	}
	c.Close()
	return bytes.Index(b[:n], []byte("\r\n")) + 2, nil
}

func TestPlain_ClaimThatWasWrittenTwiceHasTheFenceOfItsRecord(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	armed, broken := new(atomic.Bool), new(atomic.Bool)
	o := server.Options()
	o.ContextTimeoutEnabled = true
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &cutConn{Conn: conn, armed: armed, broken: broken}, err
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	s := newStore(t, rdb)
	learned(t, s)
	armed.Store(true)
	results := s.Claim(t.Context(), []dedupstore.Request{request("a"), request("b")})
	if !broken.Load() {
		t.Fatal("no connection was broken")
	}
	broken.Store(false)
	if results[0].Err != nil || results[0].Answer.Status != dedupstore.AcquiredRun {
		t.Fatalf("the claim was answered %+v", results[0])
	}
	settle(t, s, results[0].Answer.Claim, succeeded("")) // else the run would be lost, and run again
}

// A recording hook keeps the sizes of pipelines.
type recording struct {
	mu    *sync.Mutex
	sizes *[]int
}

func (recording) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (recording) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (r recording) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.mu.Lock()
		*r.sizes = append(*r.sizes, len(cmds))
		r.mu.Unlock()
		return next(ctx, cmds)
	}
}

func TestBatch_LargeSettlesTravelAlone(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	a, b := claim(t, s, request("a"), dedupstore.AcquiredRun).Claim, claim(t, s, request("b"), dedupstore.AcquiredRun).Claim
	var sizes []int
	rdb.AddHook(recording{new(sync.Mutex), &sizes})
	large := succeeded("")
	large.Outcome.Result = bytes.Repeat([]byte("x"), 1<<20)
	for _, err := range s.Settle(t.Context(), []dedupstore.Settling{{Claim: a, Settlement: large}, {Claim: b, Settlement: succeeded("")}}) {
		if err != nil {
			t.Error(err)
		}
	}
	if slices.Contains(sizes, 2) {
		t.Errorf("a settle of 1 MiB travelled with another: pipelines of %v", sizes)
	}
	claim(t, s, request("a"), dedupstore.Done)
}

func TestBarrier_RefusedClaimIsGivenBackUncountedAndItsOwnerNeverRuns(t *testing.T) {
	t.Parallel()
	master := ownServer(t)
	s := must(New(master.Client(), Config{Replicas: 1}))(t)
	s.lanes.barrier.timeout = 50 * time.Millisecond
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

// Claims queue behind others that wait for replicas, and ask twice about keys that are known. What was granted meanwhile must
// be given back, though its caller has no more time: it would count as an attempt.
func TestBarrier_ClaimWhoseCallerHasGoneIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, heeds := range map[string]bool{"client that heeds contexts": true, "client that does not": false} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{Addr: ownServer(t).Addr, ContextTimeoutEnabled: heeds})
			t.Cleanup(func() { rdb.Close() })
			s := must(New(rdb, Config{Replicas: 1}))(t)
			s.lanes.barrier.timeout = 600 * time.Millisecond
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
					ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
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

func TestCheck_AClientOfAnUnknownKindMakesNoPlainClaims(t *testing.T) {
	t.Parallel()
	type wrapped struct{ *redis.Client }
	s := newStore(t, wrapped{redistest.Start(t).Client()})
	must(s.Check(t.Context()))(t)
	if s.plain.Load() {
		t.Error("it may be a cluster of many clocks")
	}
	if _, err := New(wrapped{redis.NewClient(&redis.Options{})}, Config{Replicas: 1}); err == nil {
		t.Error("a barrier on a client of an unknown kind was accepted")
	}
}
