package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// behind returns a store on a server behind a proxy, with the scripts loaded and a connection made.
func behind(t *testing.T) (*Store, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.StartProxy(t, ownServer(t).Addr)
	s := newStore(t, impatient(t, proxy.Addr))
	settle(t, s, claim(t, s, request("first"), dedupstore.AcquiredRun).Claim, succeeded(""))
	return s, proxy
}

// stall holds the next reply until it is released, and says when that reply is there.
func stall(proxy *redistest.Proxy) (there <-chan struct{}, release func()) {
	held, let := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	proxy.Inject(func(e redistest.Exchange) redistest.Fault {
		if e.Has(":billing:") && first.CompareAndSwap(false, true) {
			close(held)
			<-let
		}
		return redistest.Fault{}
	})
	return held, sync.OnceFunc(func() { close(let) })
}

// underWay is behind, with an operation under way until it is released, which waits for it.
func underWay(t *testing.T) (s *Store, proxy *redistest.Proxy, release func()) {
	t.Helper()
	s, proxy = behind(t)
	held, let := stall(proxy)
	var group sync.WaitGroup
	group.Go(func() { claim(t, s, request("0"), dedupstore.AcquiredRun) })
	<-held
	release = func() {
		let()
		group.Wait()
	}
	t.Cleanup(release)
	return s, proxy, release
}

// queued waits until the store's only lane has so many operations in its queue.
func queued(t *testing.T, s *Store, n int) {
	t.Helper()
	l := s.lanes.of(t.Context(), "any", true)
	eventually(t, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.queue) != n {
			return fmt.Errorf("%d operations are queued, want %d", len(l.queue), n)
		}
		return nil
	})
}

func TestLane_WhatQueuesUpTravelsTogether(t *testing.T) {
	t.Parallel()
	s, _, release := underWay(t)
	writes := 0
	s.rdb.AddHook(pipelines{&writes})
	var group sync.WaitGroup
	for i := range 100 {
		group.Go(func() { claim(t, s, request(fmt.Sprint("k", i)), dedupstore.AcquiredRun) })
	}
	queued(t, s, 100)
	release()
	group.Wait()
	s.Close()
	if writes != 1 {
		t.Errorf("100 claims that waited for a flush went in %d pipelines, want 1", writes)
	}
}

type pipelines struct{ n *int }

func (pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (p pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if name := cmds[0].Name(); name == "evalsha" || name == "set" { // not what a new connection begins with
			*p.n++
		}
		return next(ctx, cmds)
	}
}

func TestLane_CancellationOfOneCallerHarmsNoOther(t *testing.T) {
	t.Parallel()
	s, _, release := underWay(t)
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 20 {
		group.Go(func() {
			if i%2 == 0 {
				claim(t, s, request(fmt.Sprint("k", i)), dedupstore.AcquiredRun)
				return
			}
			if _, err := dedupstore.ClaimOne(ctx, s, request(fmt.Sprint("k", i))); !errors.Is(err, context.Canceled) {
				t.Errorf("the cancelled claim's error is %v, want context.Canceled", err)
			}
		})
	}
	queued(t, s, 20)
	cancel()
	release()
	group.Wait()
	for i := range 20 {
		want := dedupstore.Busy
		if i%2 == 1 {
			want = "" // sent or not, as it came
		}
		a, err := dedupstore.ClaimOne(t.Context(), s, request(fmt.Sprint("k", i)))
		if err != nil || want != "" && a.Status != want {
			t.Errorf("claim %d was answered %s, %v", i, a.Status, err)
		}
	}
}

func TestLane_AbandonedOperationIsNotSent(t *testing.T) {
	t.Parallel()
	s, _, release := underWay(t)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if _, err := dedupstore.ClaimOne(ctx, s, request("gone")); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v, want context.Canceled", err)
		}
	}()
	queued(t, s, 1)
	cancel()
	<-gone // at once, although the flush before it has not returned
	release()
	s.Close()
	claim(t, s, request("gone"), dedupstore.AcquiredRun)
}

func TestLane_LostReplyOfASharedPipelineIsRepeated(t *testing.T) {
	t.Parallel()
	s, proxy, release := underWay(t)
	var group sync.WaitGroup
	answers := make([]dedupstore.Answer, 30)
	for i := range answers {
		group.Go(func() { answers[i] = claim(t, s, request(fmt.Sprint("k", i)), dedupstore.AcquiredRun) })
	}
	queued(t, s, len(answers))
	var once sync.Once
	proxy.Inject(func(e redistest.Exchange) (f redistest.Fault) {
		if e.Has(":k7") {
			once.Do(func() { f.DropReply = true })
		}
		return f
	})
	release()
	group.Wait()
	if proxy.Dropped() != 1 {
		t.Fatalf("%d replies were dropped, want 1", proxy.Dropped())
	}
	for i, a := range answers {
		if a.Claim.Attempt != 1 {
			t.Errorf("claim %d has attempt %d, want 1", i, a.Claim.Attempt)
		}
		settle(t, s, a.Claim, succeeded(""))
	}
}

func TestLane_ScriptsThatTheServerForgotAreSentAgain(t *testing.T) {
	t.Parallel()
	s, _, release := underWay(t)
	var group sync.WaitGroup
	for i := range 30 {
		group.Go(func() { claim(t, s, request(fmt.Sprint("k", i)), dedupstore.AcquiredRun) })
	}
	queued(t, s, 30)
	if err := s.rdb.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	release()
	group.Wait()
}

func TestLane_LargeOperationsHoldUpNobody(t *testing.T) {
	t.Parallel()
	s, _, release := underWay(t)
	a := dedupstore.Claim{Key: key("none"), Owner: "nobody-was-granted", Fence: 1, Lease: time.Hour, Retention: time.Hour}
	large := dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{
		Kind: dedupstore.Succeeded, Result: bytes.Repeat([]byte("x"), maxShared),
	}}
	if err := dedupstore.SettleOne(t.Context(), s, a, large); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("error is %v, want ErrClaimLost, although another operation is under way", err)
	}
	release()

}

func TestLane_ConnectionThatHangsIsPassed(t *testing.T) {
	t.Parallel()
	s, _, release := underWay(t)
	a := make(chan dedupstore.Answer, 1)
	go func() { a <- claim(t, s, request("next"), dedupstore.AcquiredRun) }()
	select {
	case <-a: // although the flush before has not returned
	case <-time.After(10 * stuckAfter):
		t.Error("a connection that hangs holds up the others")
	}
	release()
}

// A panicking hook panics once it is told to.
type panicking struct{ on *atomic.Bool }

func (panicking) DialHook(next redis.DialHook) redis.DialHook { return next }
func (p panicking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		p.panic()
		return next(ctx, c)
	}
}

func (p panicking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.panic()
		return next(ctx, cmds)
	}
}

func (p panicking) panic() {
	if p.on.CompareAndSwap(true, false) {
		panic("hook")
	}
}

func TestLane_PanicInAHookIsTheCallersAndStopsNobodyElse(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t) // which heeds contexts: others are called for by goroutines of the store
	claim(t, s, request("first"), dedupstore.AcquiredRun)
	on := new(atomic.Bool)
	rdb.AddHook(panicking{on})
	on.Store(true)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = dedupstore.ClaimOne(t.Context(), s, request("panics"))
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := dedupstore.ClaimOne(ctx, s, request("next")); err != nil {
		t.Errorf("after a panic: %v", err)
	}
	l := s.lanes.of(t.Context(), "", true)
	op, err := s.settleOperation(dedupstore.Claim{
		Key: key("none"), Owner: "nobody-was-granted", Fence: 1, Lease: time.Hour, Retention: time.Hour,
	}, succeeded(""))
	if err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	if l.execShared([]*operation{op}); op.err == nil {
		t.Error("a panic in a shared pipeline is no error")
	}
}

func TestLane_DeadlineIsKeptInTheQueue(t *testing.T) {
	t.Parallel()
	s, _, release := underWay(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := dedupstore.ClaimOne(ctx, s, request("1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want context.DeadlineExceeded", err)
	}
	results := s.Claim(ctx, []dedupstore.Request{request("2"), {}, request("3")})
	for i, want := range []error{context.DeadlineExceeded, &dedupstore.InvalidError{}, context.DeadlineExceeded} {
		if invalid := new(dedupstore.InvalidError); results[i].Err == nil || i == 1 != errors.As(results[i].Err, &invalid) {
			t.Errorf("result %d is %v, want %T", i, results[i].Err, want)
		}
	}
	release()

}

func TestStore_CloseLeavesNoGoroutine(t *testing.T) {
	server := ownServer(t)
	before := goleak.IgnoreCurrent()
	rdb := redis.NewClient(server.Options())
	s := newStore(t, rdb)
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() { claim(t, s, request(fmt.Sprint(i)), dedupstore.AcquiredRun) })
	}
	group.Wait()
	s.Close()
	rdb.Close()
	goleak.VerifyNone(t, before)
}

// At shutdown, handlers that did not end in time go on with their heartbeats.
func TestStore_CloseMayBeCalledTooEarly(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	var beating, closing sync.WaitGroup
	over := make(chan struct{})
	for range 4 {
		beating.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: c, Lease: time.Minute, Started: true}); err != nil {
					t.Error(err)
				}
			}
		})
		closing.Go(func() {
			for range 2000 {
				s.Close()
			}
		})
	}
	closing.Wait()
	close(over)
	beating.Wait()
}

func TestStore_ManyCallersKeepTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	var group sync.WaitGroup
	for w := range 64 {
		group.Go(func() {
			for i := range 50 {
				id := fmt.Sprintf("%d-%d", w, i)
				r := request(id)
				a := claim(t, s, r, dedupstore.AcquiredRun)
				settle(t, s, a.Claim, succeeded(strings.Repeat(id+" ", w+1)))
				got := claim(t, s, request(id), dedupstore.Done)
				if string(got.Outcome.Result) != strings.Repeat(id+" ", w+1) || got.Fence != a.Claim.Fence || got.Trace != r.Trace {
					t.Errorf("%s: the outcome is %+v", id, got)
				}
			}
		})
	}
	group.Wait()
}

func TestCluster_NodeThatHangsHoldsUpItsOwnKeysOnly(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client()
	s := newStore(t, rdb)
	byNode := map[string][]string{}
	for i := range 60 {
		id := fmt.Sprint(i)
		node := must(rdb.MasterForKey(t.Context(), s.name(key(id))))(t).Options().Addr
		byNode[node] = append(byNode[node], id)
		claim(t, s, request("warm-"+id), dedupstore.AcquiredRun)
	}
	hung := cluster.Nodes[0]
	if err := hung.Process().Pause(); err != nil {
		t.Fatal(err)
	}
	defer hung.Process().Resume()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, id := range byNode[hung.Addr] {
		group.Go(func() { _, _ = dedupstore.ClaimOne(ctx, s, request(id)) }) // as it comes: a replica may take over meanwhile
	}
	for node, ids := range byNode {
		if node == hung.Addr {
			continue
		}
		for _, id := range ids {
			start := time.Now()
			claim(t, s, request(id), dedupstore.AcquiredRun)
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("a claim on a node that works took %v", took)
			}
		}
	}
	cancel()
	group.Wait()
}

// The first claim looks at the server. A reply to that which never comes must not hold up all others for as long as the process lives.
func TestStore_CheckThatDoesNotEndHoldsUpNoLaterClaim(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	for name, options := range map[string]redis.Options{
		"by default":         {},
		"without a deadline": {ContextTimeoutEnabled: true, ReadTimeout: -2},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := redistest.StartProxy(t, server.Addr)
			options.Addr = proxy.Addr
			rdb := redis.NewClient(&options)
			t.Cleanup(func() { rdb.Close() })
			s := newStore(t, rdb)
			let := make(chan struct{})
			defer close(let)
			var first atomic.Bool
			proxy.Inject(func(e redistest.Exchange) redistest.Fault {
				if e.Has("\r\ninfo\r\n") && first.CompareAndSwap(false, true) {
					<-let
				}
				return redistest.Fault{}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if _, err := dedupstore.ClaimOne(ctx, s, request("1")); !errors.Is(err, context.DeadlineExceeded) || !first.Load() {
				t.Fatalf("the first claim: %v, want the end of its context", err)
			}
			ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if a, err := dedupstore.ClaimOne(ctx, s, request("1")); err != nil || a.Status != dedupstore.AcquiredRun {
				t.Errorf("the next claim: %+v, %v", a, err)
			}
		})
	}
}

// By default go-redis heeds no contexts: a reply that does not come is waited for until ReadTimeout, again and again.
func TestLane_HeartbeatEndsWithItsContextWhateverTheClientDoes(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, ownServer(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
	t.Cleanup(func() { rdb.Close() })
	s := newStore(t, rdb)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	held, release := stall(proxy)
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- dedupstore.ExtendOne(ctx, s, dedupstore.Extension{Claim: c, Lease: time.Minute, Started: true})
	}()
	<-held
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
	case <-time.After(2 * time.Second):
		t.Error("the heartbeat still waits for its reply 2 s after it was cancelled")
	}
	settle(t, s, c, succeeded("")) // by another connection
}

func TestLane_OperationsEndWithTheirContextsWhateverTheClientDoes(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	clients := map[string]redis.Options{
		"by default":         {},
		"without a deadline": {ContextTimeoutEnabled: true, ReadTimeout: -2}, // go-redis sets none, not even the context's
	}
	for name, operation := range map[string]func(context.Context, *Store, dedupstore.Claim) error{
		"claim": func(ctx context.Context, s *Store, _ dedupstore.Claim) error {
			_, err := dedupstore.ClaimOne(ctx, s, request("new"))
			return err
		},
		"batch": func(ctx context.Context, s *Store, _ dedupstore.Claim) error {
			return s.Claim(ctx, []dedupstore.Request{request("new 1"), request("new 2")})[1].Err
		},
		"outcome": func(ctx context.Context, s *Store, c dedupstore.Claim) error {
			return dedupstore.SettleOne(ctx, s, c, succeeded(""))
		},
		"large outcome": func(ctx context.Context, s *Store, c dedupstore.Claim) error {
			return dedupstore.SettleOne(ctx, s, c, succeeded(strings.Repeat("x", 2*maxShared)))
		},
	} {
		for client, options := range clients {
			t.Run(name+" "+client, func(t *testing.T) {
				proxy := redistest.StartProxy(t, server.Addr)
				options.Addr = proxy.Addr
				rdb := redis.NewClient(&options)
				t.Cleanup(func() { rdb.Close() })
				s := newStore(t, rdb)
				c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
				_, release := stall(proxy)
				defer release()
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				start := time.Now()
				if err := operation(ctx, s, c); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
					t.Errorf("%v after %v, want the end of its context after 200 ms", err, time.Since(start))
				}
				if err := operation(t.Context(), s, c); err != nil {
					t.Errorf("by another connection: %v", err)
				}
			})
		}
	}
}

// The first claim looks at the server before.
func TestGate_CheckOfTheFirstClaimEndsWithItsContextWhateverTheClientDoes(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, ownServer(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
	t.Cleanup(func() { rdb.Close() })
	s, hung := newStore(t, rdb), make(chan struct{})
	proxy.Inject(func(redistest.Exchange) redistest.Fault {
		<-hung
		return redistest.Fault{}
	})
	release := sync.OnceFunc(func() { close(hung) })
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := dedupstore.ClaimOne(ctx, s, request("1")); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
		t.Errorf("%v after %v, want the end of its context after 200 ms", err, time.Since(start))
	}
	release()
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	s.Close()
}
