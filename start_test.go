package oncemill_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// An arrival is a call whose handler is set when it begins.
type arrival struct {
	oncemill.Ahead
	ready chan struct{}
	fn    oncemill.RunFunc
	done  func(oncemill.Result, error)
}

func (a *arrival) Claimed() { close(a.ready) }

func (a *arrival) Handle(ctx context.Context) (dedupstore.Outcome, error) { return a.fn(ctx) }

func (a *arrival) Ended(res oncemill.Result, err error) { a.done(res, err) }

func (a *arrival) begin(ctx context.Context, fn oncemill.RunFunc, done func(oncemill.Result, error)) (later bool) {
	a.fn, a.done = fn, done
	return a.Begin(ctx)
}

// claimed returns a call whose claim has been answered.
func claimed(t *testing.T, g *oncemill.Guard, c oncemill.Call) *arrival {
	t.Helper()
	a := &arrival{ready: make(chan struct{})}
	g.StartAhead(t.Context(), &a.Ahead, &c, a)
	<-a.ready
	return a
}

// begun begins a claimed call, and returns how that ended.
func begun(t *testing.T, a *arrival, h *counter) (oncemill.Result, error) {
	t.Helper()
	type end struct {
		res oncemill.Result
		err error
	}
	ended := make(chan end, 1)
	later := a.begin(t.Context(), h.run, func(res oncemill.Result, err error) { ended <- end{res, err} })
	if !later && len(ended) == 0 {
		t.Error("Begin has told that the call has ended, before its end was told")
	}
	e := <-ended
	if _, retries := answertest.Is(e.err, oncemill.StatusRetry); later && (e.res.Duplicate || retries) {
		t.Errorf("Begin has told that a success is being stored, and it is %+v", e.res)
	}
	return e.res, e.err
}

func TestStart_MessagesThatArriveTogetherTravelTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := &batches{Store: newStore(t)}
		g := newGuard(t, store, oncemill.Policy{})
		var done sync.WaitGroup
		var h counter
		calls := []oncemill.Call{call("a"), call("b"), call("c"), call("d")}
		done.Add(len(calls))
		g.Start(slices.Repeat([]context.Context{t.Context()}, len(calls)), calls,
			func(ctx context.Context, i int) (dedupstore.Outcome, error) {
				if got := oncemill.FromContext(ctx).Key; got != calls[i].Key {
					t.Errorf("call %d runs as %v", i, got)
				}
				return h.run(ctx)
			}, func(i int, res oncemill.Result, err error) {
				defer done.Done()
				if err != nil || res.Status != oncemill.StatusDone || res.Attempt != 1 || res.Duplicate {
					t.Errorf("%d ended with %+v, %v", i, res, err)
				}
			})
		done.Wait()
		h.want(t, 4)
		if store.claims > 1 || store.settles > 2 {
			t.Errorf("4 messages took %d batches of claims and %d of settlements, want 1 and at most 2", store.claims, store.settles)
		}
	})
}

// A handler that ends its goroutine, or something that panics around it, must not leave its caller without an answer.
func TestStart_TellsOfWhatDoesNotReturn(t *testing.T) {
	for name, c := range map[string]struct {
		then    func() error
		publish func()
		want    any
	}{
		"the handler exits":    {then: func() error { runtime.Goexit(); return nil }},
		"the publisher panics": {publish: func() { panic("boom") }, want: "boom"},
		"the publisher exits":  {publish: runtime.Goexit},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				g := newGuard(t, newStore(t), oncemill.Policy{})
				one := call("m1")
				one.Publish = func(context.Context, []dedupstore.Produced) error { c.publish(); return nil }
				told := make(chan error, 1)
				g.Start([]context.Context{t.Context()}, []oncemill.Call{one}, func(context.Context, int) (dedupstore.Outcome, error) {
					if c.then != nil {
						return dedupstore.Outcome{}, c.then()
					}
					return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "o1", Topic: "receipts"}}}, nil
				}, func(_ int, res oncemill.Result, err error) {
					if res.Status != 0 {
						t.Errorf("the answer is %v", res.Status)
					}
					told <- err
				})
				p, ok := errors.AsType[*oncemill.PanicError](<-told)
				if !ok || (p.Value == nil) != (c.want == nil) {
					t.Errorf("told of %v, want a panic with %v", p, c.want)
				}
				g.Close()
			})
		})
	}
}

type nilUnwrapper struct{ cause error }

func (e *nilUnwrapper) Error() string { return e.cause.Error() }
func (e *nilUnwrapper) Unwrap() error { return e.cause }

// batches counts those that come.
type batches struct {
	dedupstore.Store
	mu              sync.Mutex
	claims, settles int
}

func (b *batches) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims++
	return b.Store.Claim(ctx, requests)
}

func (b *batches) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settles++
	return b.Store.Settle(ctx, settlings)
}

// A message that waits for its handler longer than a lease keeps its claim.
func TestAhead_ClaimIsExtended(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{Lease: 30 * time.Second})
		ahead := claimed(t, g, call("m1"))
		time.Sleep(10 * time.Minute)
		_, err := g.Run(t.Context(), call("m1"), (&counter{}).run)
		answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)
		if res, err := begun(t, ahead, &counter{}); err != nil || res.Attempt != 1 {
			t.Errorf("ended with %+v, %v", res, err)
		}
	})
}

// A process that dies between claim and start has had no effect: also at most once, its message runs again, and not
// before the lease is over.
func TestAhead_RunsAgainIfItsProcessDies(t *testing.T) {
	for name, policy := range map[string]oncemill.Policy{
		"retake": {Lease: 30 * time.Second},
		"park":   {Lease: 30 * time.Second, ExpiredLease: oncemill.Park},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store, dying := newStore(t), newStore(t)
				dying.Store = store
				ahead := claimed(t, newGuard(t, dying, policy), call("m1"))
				time.Sleep(time.Minute) // it waits, and is extended
				dying.down.Store(true)  // nothing of the process reaches the store any more
				synctest.Wait()
				time.Sleep(31 * time.Second)
				h := counter{}
				res, err := newGuard(t, store, policy).Run(t.Context(), call("m1"), h.run)
				if err != nil || res.Attempt != 2 || h.runs.Load() != 1 {
					t.Errorf("the next delivery ended with %+v, %v after %d calls, want a second attempt", res, err, h.runs.Load())
				}
				_, err = begun(t, ahead, &counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
					t.Error("the handler of a claim that is lost was called")
					return dedupstore.Outcome{}, nil
				}})
				if err == nil {
					t.Error("a call whose claim is lost ended well")
				}
			})
		})
	}
}

// A call that does not begin gives its claim back, and the attempt with it.
func TestAhead_GivenBackRunsAtOnceAndCountsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{MaxAttempts: 1})
		for range 3 {
			claimed(t, g, call("m1")).GiveBack(t.Context())
		}
		time.Sleep(time.Hour) // virtual
		if store.extended() > 0 {
			t.Errorf("what was given back was extended %d times", store.extended())
		}
		if res, err := g.Run(t.Context(), call("m1"), (&counter{}).run); err != nil || res.Attempt != 1 {
			t.Errorf("ended with %+v, %v", res, err)
		}
	})
}

// A publish step that is given back is soon taken over.
func TestAhead_GivenBackIsPublishedSoon(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		finish := dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{
			Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{{ID: "out", Topic: "t"}},
		}}
		if err := dedupstore.SettleOne(t.Context(), store, abandonedClaim(t, store, "m1"), finish); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // its publisher is gone
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second})
		claimed(t, g, call("m1")).GiveBack(t.Context())
		time.Sleep(5 * time.Second)
		var p publisher
		c := call("m1")
		c.Publish = p.publish
		if _, err := g.Run(t.Context(), c, (&counter{}).run); err != nil {
			t.Error(err)
		}
		p.want(t, "out")
	})
}

// A full store may have no room for the reason of a release.
func TestAhead_GivenBackToAFullStore(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.settle = func(s dedupstore.Settlement, apply func() error) error {
			if r, releases := s.(dedupstore.Release); releases && r.Reason != "" {
				return dedupstore.ErrFull
			}
			return apply()
		}
		log := &lines{level: slog.LevelWarn}
		g := newGuard(t, store, oncemill.Policy{Logger: slog.New(log)})
		claimed(t, g, call("m1")).GiveBack(t.Context())
		if seen := store.look(t, "m1"); seen.State != dedupstore.Retryable || len(log.lines) > 0 {
			t.Errorf("the record is %+v, the log says %q", seen, log.lines)
		}
	})
}

// The log says which claims could not be given back, and nothing of those that others have taken.
func TestAhead_SaysWhatIsNotGivenBack(t *testing.T) {
	for err, want := range map[error]int{errDown: 1, dedupstore.ErrClaimLost: 0} {
		t.Run(err.Error(), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				store.settle = func(dedupstore.Settlement, func() error) error { return err }
				log := &lines{level: slog.LevelWarn}
				claimed(t, newGuard(t, store, oncemill.Policy{Logger: slog.New(log)}), call("m1")).GiveBack(t.Context())
				if len(log.lines) != want {
					t.Errorf("the log says %q, want %d lines", log.lines, want)
				}
			})
		})
	}
}

// Of a failure Begin tells the end before it returns.
func TestAhead_BeginTellsWhatIsNotStoredWithOthersAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		_, err := begun(t, claimed(t, g, call("m1")), &counter{then: failing(errDown)})
		answertest.Want(t, err, oncemill.StatusRetry)
	})
}

// started starts calls, and returns the errors with which they ended.
func started(t *testing.T, g *oncemill.Guard, contexts []context.Context, h *counter, ids ...string) []error {
	t.Helper()
	var calls []oncemill.Call
	for _, id := range ids {
		calls = append(calls, call(id))
	}
	ends := make([]error, len(calls))
	var done sync.WaitGroup
	done.Add(len(calls))
	g.Start(contexts, calls, func(ctx context.Context, _ int) (dedupstore.Outcome, error) { return h.run(ctx) },
		func(i int, _ oncemill.Result, err error) { ends[i] = err; done.Done() })
	done.Wait()
	return ends
}

// Deliveries may end while their claims are under way: these are given back, or their messages would wait for the end
// of the leases.
func TestStart_DeliveryThatEndsWhileItIsClaimedIsGivenBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{MaxAttempts: 1})
		ctx, shutdown := context.WithCancelCause(t.Context())
		store.claim = func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			shutdown(errDown)
			return apply()
		}
		var h counter
		for _, err := range started(t, g, []context.Context{ctx, ctx}, &h, "a", "b") {
			wantError(t, err, errDown)
		}
		h.want(t, 0)
		store.claim = nil
		for _, id := range []string{"a", "b"} {
			if res, err := g.Run(t.Context(), call(id), h.run); err != nil || res.Attempt != 1 {
				t.Errorf("%s: %+v, %v; want the claim given back", id, res, err)
			}
		}
	})
}

// What is wrong with a call, or has ended, is no question to the store.
func TestStart_AsksTheStoreOnlyForWhatCanRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		ended, end := context.WithCancelCause(t.Context())
		end(errDown)
		var h counter
		errs := started(t, g, []context.Context{t.Context(), t.Context(), ended}, &h, "good", "", "ended")
		if errs[0] != nil || errs[1] == nil || !errors.Is(errs[2], errDown) {
			t.Errorf("they ended with %v", errs)
		}
		h.want(t, 1)
		if n := store.claimed(); n != 1 || store.claims[0].Key.ID != "good" {
			t.Errorf("the store was asked for %v", store.claims)
		}
		if _, err := g.Run(ended, call("alone"), h.run); !errors.Is(err, errDown) || store.claimed() != 1 {
			t.Errorf("ended with %v, after %d claims", err, store.claimed())
		}
	})
}

// Calls of several shards that start together are all asked for.
func TestStart_CallsOfSeveralShards(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := sharded{newOutage(t)}
		g := newGuard(t, store, oncemill.Policy{})
		var h counter
		contexts := slices.Repeat([]context.Context{t.Context()}, 6)
		for i, err := range started(t, g, contexts, &h, "a 1", "a 2", "b 1", "a 3", "c 1", "c 2") {
			if err != nil {
				t.Errorf("call %d ended with %v", i, err)
			}
		}
		h.want(t, 6)
	})
}

// The handler has returned, and its outcome is refused: nobody may take that for a success.
func TestStart_SettlementThatIsRefusedLaterIsAnError(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.settle = func(dedupstore.Settlement, func() error) error { return dedupstore.ErrClaimLost }
		g := newGuard(t, store, oncemill.Policy{})
		_, err := begun(t, claimed(t, g, call("m1")), &counter{})
		answertest.Want(t, err, oncemill.StatusLost)
	})
}

// A settlement of one message that has to be tried again holds up no other.
func TestStart_SettlementThatIsTriedAgainDelaysNobody(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		var down sync.Map
		store.settle = func(s dedupstore.Settlement, apply func() error) error {
			f, _ := s.(dedupstore.Finish)
			if _, stuck := down.Load(string(f.Outcome.Result)); stuck {
				return errDown
			}
			return apply()
		}
		down.Store("stuck", true)
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second})
		ended := make(chan error, 1)
		stuck := &counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: []byte("stuck")}, nil
		}}
		claimed(t, g, call("stuck")).begin(t.Context(), stuck.run, func(_ oncemill.Result, err error) { ended <- err })
		began := time.Now()
		if _, err := begun(t, claimed(t, g, call("other")), &counter{}); err != nil || time.Since(began) > time.Second {
			t.Errorf("another message ended with %v after %v", err, time.Since(began))
		}
		down.Delete("stuck")
		if err := <-ended; err != nil {
			t.Errorf("the one that was tried again ended with %v", err)
		}
	})
}

// A failure whose dead letter is too large for the record runs once, however often its publisher fails.
func TestGuard_FailureWithAnOversizeDeadLetterRunsOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{MaxProducedBytes: 1000})
		letter := bytes.Repeat([]byte("x"), 1500)
		var published [][]byte
		fails := 3
		c := call("m1")
		c.DeadLetter = func(_ dedupstore.Outcome, _ int, fence uint64) []dedupstore.Produced {
			return []dedupstore.Produced{{ID: "letter of " + time.Unix(0, int64(fence)).UTC().String(), Topic: "dead", Payload: letter}}
		}
		c.Publish = func(_ context.Context, produced []dedupstore.Produced) error {
			if fails--; fails >= 0 {
				return errDown
			}
			published = append(published, produced[0].Payload)
			return nil
		}
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.Permanent(errors.New("declined"))
		}}
		for range 3 {
			_, err := g.Run(t.Context(), c, h.run)
			time.Sleep(answertest.Want(t, err, oncemill.StatusUnpublished).Wait + time.Millisecond)
		}
		res, err := g.Run(t.Context(), c, h.run)
		if err != nil || res.Outcome.Kind != dedupstore.Failed || h.runs.Load() != 1 {
			t.Errorf("ended with %+v, %v after %d runs, want a failure after one", res, err, h.runs.Load())
		}
		if first, _ := store.settled[0].(dedupstore.Finish); !first.Withheld || len(first.Outcome.Produced) > 0 {
			t.Errorf("the record was to hold %d messages, want a failure without its letter", len(first.Outcome.Produced))
		}
		if len(published) != 1 || !bytes.Equal(published[0], letter) {
			t.Errorf("%d letters were published, want one, as it was", len(published))
		}
		if res, err := g.Run(t.Context(), c, h.run); err != nil || !res.Duplicate || len(published) != 1 {
			t.Errorf("a duplicate ended with %+v, %v", res, err)
		}
	})
}

func TestGuard_DuplicatesAreNotedBesideTheRecord(t *testing.T) {
	virtual(t, func(t *testing.T) {
		m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		g := newGuard(t, m, oncemill.Policy{})
		for range 4 {
			if _, err := g.Run(t.Context(), call("m1"), (&counter{}).run); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second) // they are noted in batches
		records, err := m.Look(t.Context(), []dedupstore.Key{key("m1")})
		if err != nil || records[0].Duplicates != 3 || records[0].Holder == "" || records[0].Ended.IsZero() {
			t.Errorf("the record is %+v, %v, want 3 duplicates, a holder and an end", records, err)
		}
	})
}

// flakyStore refuses each seventh batch of claims.
type flakyStore struct {
	dedupstore.Store
	n atomic.Int64
}

func (f *flakyStore) Claim(ctx context.Context, rs []dedupstore.Request) []dedupstore.ClaimResult {
	if f.n.Add(1)%7 == 0 {
		out := make([]dedupstore.ClaimResult, len(rs))
		for i := range out {
			out[i].Err = errors.New("down")
		}
		return out
	}
	return f.Store.Claim(ctx, rs)
}

// A store that fails now and then answers claims at once that wait for their batch to be sent. The race detector looks.
func TestStart_ClaimsThatAreAnsweredAtOnce(t *testing.T) {
	g := newGuard(t, &flakyStore{Store: newStore(t)}, oncemill.Policy{Logger: slog.New(slog.DiscardHandler)})
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for n := range 20 {
				const k = 32
				calls, ctxs := make([]oncemill.Call, k), make([]context.Context, k)
				for i := range calls {
					calls[i] = call(fmt.Sprint(worker, "-", n, "-", i))
					calls[i].MaxWait = time.Second
					ctxs[i] = t.Context()
				}
				var done sync.WaitGroup
				done.Add(k)
				g.Start(ctxs, calls,
					func(context.Context, int) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil },
					func(int, oncemill.Result, error) { done.Done() })
				done.Wait()
			}
		})
	}
	all.Wait()
	g.Close()
}
