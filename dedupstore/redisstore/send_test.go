package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
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
	taken, let := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	proxy.Inject(func(e redistest.Exchange) redistest.Fault {
		if e.Has(":billing:") && first.CompareAndSwap(false, true) {
			close(taken)
			<-let
		}
		return redistest.Fault{}
	})
	return taken, sync.OnceFunc(func() { close(let) })
}

// requests are claims of so many keys.
func requests(n int) []dedupstore.Request {
	list := make([]dedupstore.Request, n)
	for i := range list {
		list[i] = request(fmt.Sprint("k", i))
	}
	return list
}

// finishes are settlings of claims that were granted.
func finishes(t *testing.T, results []dedupstore.ClaimResult) []dedupstore.Settling {
	t.Helper()
	list := make([]dedupstore.Settling, len(results))
	for i, r := range results {
		if r.Err != nil || r.Answer.Status != dedupstore.AcquiredRun || r.Answer.Claim.Attempt != 1 {
			t.Fatalf("claim %d was answered %+v", i, r)
		}
		list[i] = dedupstore.Settling{Claim: r.Answer.Claim, Settlement: succeeded("")}
	}
	return list
}

func TestPipelines_CutsWhatMayNotTravelTogether(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct{ ops, want string }{
		"nothing":            {"", ""},
		"one":                {"a", "a"},
		"small ones":         {"a b c", "a b c"},
		"equal keys":         {"a b a a b c", "a b c|a b|a"},
		"large ones":         {"A b C d", "b d|A|C"},
		"a large equal one":  {"a b A", "a b|A"},
		"a small one behind": {"A b a", "b|A|a"},
	} {
		var ops []*operation
		for i, name := range strings.Fields(test.ops) {
			op := &operation{index: i, name: strings.ToLower(name)}
			if op.name != name {
				op.packed = make([]byte, maxShared+1)
			}
			ops = append(ops, op)
		}
		var got []string
		for len(ops) > 0 {
			first, others := distinct(ops, map[string]struct{}{})
			for _, together := range pipelines(first) {
				var names []string
				for _, op := range together {
					names = append(names, strings.Fields(test.ops)[op.index])
				}
				got = append(got, strings.Join(names, " "))
			}
			ops = others
		}
		if strings.Join(got, "|") != test.want {
			t.Errorf("%s: %q is cut into %q, want %q", what, test.ops, got, test.want)
		}
	}
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

func TestSend_ABatchIsOnePipelineOfAtMost256(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	learned(t, s)
	settle(t, s, claim(t, s, request("first"), dedupstore.AcquiredRun).Claim, succeeded("")) // the server knows the scripts
	var sizes []int
	rdb.AddHook(recording{new(sync.Mutex), &sizes})
	settlings := finishes(t, s.Claim(t.Context(), requests(maxBatch+44)))
	for _, err := range s.Settle(t.Context(), settlings) {
		if err != nil {
			t.Error(err)
		}
	}
	if want := []int{maxBatch, 44, maxBatch, 44}; !slices.Equal(sizes, want) {
		t.Errorf("claims and settlings of %d went in pipelines of %v, want %v", maxBatch+44, sizes, want)
	}
}

func TestSend_LargeSettlesTravelAlone(t *testing.T) {
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

// A Cluster's or a restarted server's scripts may be forgotten at any time. An operation that is sent again must not
// come behind one that was sent after it.
func TestSend_ScriptsThatTheServerForgotAreSentAgainInOrder(t *testing.T) {
	t.Parallel()
	rdb := ownServer(t).Client()
	s := newStore(t, rdb)
	flush := func() {
		t.Helper()
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	claim(t, s, request("first"), dedupstore.AcquiredRun)
	s.plain.Store(false)
	flush()
	settlings := finishes(t, s.Claim(t.Context(), requests(30)))
	flush()
	settle(t, s, settlings[0].Claim, succeeded("")) // the server knows finish, and not release
	c := settlings[1].Claim
	errs := s.Settle(t.Context(), append([]dedupstore.Settling{{Claim: c, Settlement: dedupstore.Release{}}}, settlings[1:]...))
	for i, err := range errs {
		if want := i == 1; errors.Is(err, dedupstore.ErrClaimLost) != want || err != nil && !want {
			t.Errorf("settling %d: %v", i, err)
		}
	}
}

func TestSend_LostReplyOfASharedPipelineIsRepeated(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]int{"by the client": 0, "by the caller": -1} {
		t.Run(name, func(t *testing.T) {
			proxy := redistest.StartProxy(t, ownServer(t).Addr)
			options := *impatient(t, proxy.Addr).Options()
			options.MaxRetries = retries
			rdb := redis.NewClient(&options)
			t.Cleanup(func() { rdb.Close() })
			s := newStore(t, rdb)
			settle(t, s, claim(t, s, request("first"), dedupstore.AcquiredRun).Claim, succeeded(""))
			var lose atomic.Bool
			proxy.Inject(func(e redistest.Exchange) redistest.Fault {
				return redistest.Fault{DropReply: e.Has(":k7") && lose.CompareAndSwap(true, false)}
			})
			lose.Store(true)
			list := requests(30)
			results := s.Claim(t.Context(), list)
			if retries < 0 {
				if results[7].Err == nil || errors.Is(results[7].Err, dedupstore.ErrClaimLost) {
					t.Errorf("a claim whose reply was lost: %+v, want an error of the network", results[7])
				}
				results = s.Claim(t.Context(), list)
			}
			settlings := finishes(t, results)
			lose.Store(true)
			errs := s.Settle(t.Context(), settlings)
			if retries < 0 {
				if errs[7] == nil || errors.Is(errs[7], dedupstore.ErrClaimLost) {
					t.Errorf("a settling whose reply was lost: %v, want an error of the network", errs[7])
				}
				errs = s.Settle(t.Context(), settlings)
			}
			if err := errors.Join(errs...); err != nil || proxy.Dropped() != 2 {
				t.Errorf("%v, with %d lost replies, want 2", err, proxy.Dropped())
			}
		})
	}
}

func TestSend_ConnectionThatHangsHoldsUpItsOwnCallOnly(t *testing.T) {
	t.Parallel()
	s, proxy := behind(t)
	taken, let := stall(proxy)
	var group sync.WaitGroup
	group.Go(func() { claim(t, s, request("0"), dedupstore.AcquiredRun) })
	<-taken
	claim(t, s, request("next"), dedupstore.AcquiredRun)
	s.Claim(t.Context(), requests(2))
	let()
	group.Wait()
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

func TestSend_PanicInAHookIsTheCallersAndStopsNobodyElse(t *testing.T) {
	t.Parallel()
	for name, heeds := range map[string]bool{"client that heeds contexts": true, "client that does not": false} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			rdb := server.Client()
			if !heeds {
				rdb = deafClient(t, server)
			}
			s := newStore(t, rdb)
			a, b := claim(t, s, request("a"), dedupstore.AcquiredRun).Claim, claim(t, s, request("b"), dedupstore.AcquiredRun).Claim
			on := new(atomic.Bool)
			rdb.AddHook(panicking{on})
			first := newStore(t, rdb)
			for what, try := range map[string]func() error{
				"look":  func() error { return first.Claim(t.Context(), []dedupstore.Request{request("0")})[0].Err },
				"claim": func() error { return s.Claim(t.Context(), []dedupstore.Request{request("1")})[0].Err },
				"batch": func() error { return s.Claim(t.Context(), requests(2))[1].Err },
				"extension": func() error {
					return dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: a, Lease: time.Minute})
				},
				"settling": func() error { return dedupstore.SettleOne(t.Context(), s, b, succeeded("")) },
			} {
				on.Store(true)
				func() {
					defer func() {
						if v := recover(); v != "hook" {
							t.Errorf("%s: the caller's panic is %v", what, v)
						}
					}()
					t.Errorf("%s: error %v, want a panic", what, try())
				}()
				if err := try(); err != nil {
					t.Errorf("%s, after a panic: %v", what, err)
				}
			}
		})
	}
}

func TestStore_CloseLeavesNoGoroutine(t *testing.T) {
	server := ownServer(t)
	before := goleak.IgnoreCurrent()
	rdb := deafClient(t, server)
	s := newStore(t, rdb)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() {
			_, err := dedupstore.ClaimOne(ctx, s, request(fmt.Sprint(i)))
			if cancel(); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	s.Close()
	rdb.Close()
	goleak.VerifyNone(t, before)
}

// At shutdown, handlers that did not end in time go on with their heartbeats.
func TestStore_CloseMayBeCalledTooEarly(t *testing.T) {
	t.Parallel()
	s := newStore(t, deafClient(t, redistest.Start(t)))
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
		group.Go(func() { _, _ = dedupstore.ClaimOne(ctx, s, request(id)) }) // as it comes
	}
	for node, ids := range byNode {
		if node == hung.Addr {
			continue
		}
		for _, id := range ids {
			start := time.Now()
			claim(t, s, request(id), dedupstore.AcquiredRun)
			if took := time.Since(start); took > 2*time.Second { // the client gives a node that hangs up after 3 s
				t.Errorf("a claim on a node that works took %v", took)
			}
		}
	}
	cancel()
	group.Wait()
}

// By default go-redis heeds no contexts: a reply that does not come is waited for until ReadTimeout, again and again.
func TestSend_HeartbeatEndsWithItsContextWhateverTheClientDoes(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, ownServer(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: time.Hour})
	t.Cleanup(func() { rdb.Close() })
	s := newStore(t, rdb)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	taken, release := stall(proxy)
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- dedupstore.ExtendOne(ctx, s, dedupstore.Extension{Claim: c, Lease: time.Minute, Started: true})
	}()
	<-taken
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
	case <-time.After(testserver.WaitLimit):
		t.Error("the heartbeat still waits for its reply although it was cancelled")
	}
	settle(t, s, c, succeeded("")) // by another connection
}

func TestSend_OperationsEndWithTheirContextsWhateverTheClientDoes(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	clients := map[string]redis.Options{
		"by default":         {ReadTimeout: time.Hour},
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
				taken, release := stall(proxy)
				defer release()
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				start := time.Now()
				if err := operation(ctx, s, c); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > testserver.WaitLimit {
					t.Errorf("%v after %v, want the end of its context after 200 ms", err, time.Since(start))
				}
				select {
				case <-taken:
				default: // on a busy machine it did not come so far, and the next one would be held
					release()
				}
				if err := operation(t.Context(), s, c); err != nil {
					t.Errorf("by another connection: %v", err)
				}
			})
		}
	}
}
