package redisstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
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
	c := &s.clock
	for c.last.Load() == nil {
		claim(t, s, request(ids.New()), dedupstore.AcquiredRun)
	}
	c.next.Store(int64(time.Since(start) + time.Hour))
	return c
}

// plainly makes sure that the next claim is plain.
func plainly(t *testing.T, s *Store) {
	t.Helper()
	c := &s.clock
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
