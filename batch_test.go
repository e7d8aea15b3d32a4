package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// together runs calls of these IDs in a batch, and returns how each ended.
func together(t *testing.T, g *oncemill.Guard, fn oncemill.BatchFunc, ids ...string) []oncemill.Result {
	t.Helper()
	var calls []oncemill.Call
	for _, id := range ids {
		calls = append(calls, call(id))
	}
	return batchOf(t, g, fn, calls...)
}

func batchOf(t *testing.T, g *oncemill.Guard, fn oncemill.BatchFunc, calls ...oncemill.Call) []oncemill.Result {
	t.Helper()
	ends := make([]oncemill.Result, len(calls))
	var ended sync.WaitGroup
	ended.Add(len(calls))
	contexts := slices.Repeat([]context.Context{t.Context()}, len(calls))
	g.StartBatch(t.Context(), calls, contexts, fn, func(i int, res oncemill.Result, _ error) {
		ends[i] = res
		ended.Done()
	})
	ended.Wait()
	return ends
}

// shapes notes which calls ran together.
type shapes struct {
	mu  sync.Mutex
	ran [][]int
}

func (s *shapes) note(calls []int) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ran = append(s.ran, slices.Clone(calls))
	return len(s.ran)
}

func TestStartBatch_EachErrorSteersItsOwnCall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		var s shapes
		ends := together(t, g, func(ctx context.Context, calls []int) []error {
			s.note(calls)
			runs := oncemill.RunsFromContext(ctx)
			if len(runs) != 3 || runs[1].Key.ID != "b" || runs[1].Attempt != 1 {
				t.Errorf("runs %+v", runs)
			}
			return []error{nil, errors.New("again"), nil}
		}, "a", "b", "c")
		if len(s.ran) != 1 || !slices.Equal(s.ran[0], []int{0, 1, 2}) {
			t.Errorf("calls ran as %v, want all at once", s.ran)
		}
		for i, want := range []oncemill.Status{oncemill.StatusDone, oncemill.StatusRetry, oncemill.StatusDone} {
			if ends[i].Status != want {
				t.Errorf("call %d ended with %+v, want status %v", i, ends[i], want)
			}
		}
	})
}

// A batch that fails as a whole costs no attempt: each call runs under the claim that it has.
func TestStartBatch_ABatchThatFailsAsAWholeCostsNoAttempt(t *testing.T) {
	for name, fn := range map[string]oncemill.BatchFunc{
		"one error":       func(context.Context, []int) []error { return []error{errors.New("no")} },
		"too many errors": func(context.Context, []int) []error { return make([]error, 3) },
		"a panic":         func(context.Context, []int) []error { panic("no") },
		"no return":       func(context.Context, []int) []error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				memory := newStore(t)
				g := newGuard(t, &batches{Store: memory}, oncemill.Policy{Lease: 3 * time.Second})
				var s shapes
				ends := together(t, g, func(ctx context.Context, calls []int) []error {
					if s.note(calls); len(calls) > 1 {
						return fn(ctx, calls)
					}
					time.Sleep(10 * time.Second) // virtual: the leases are kept alive meanwhile
					id := oncemill.FromContext(ctx).Key.ID
					if until := memory.look(t, id).Until; !time.Now().Before(until) {
						t.Errorf("the lease of %s has ended at %v, and its handler runs", id, until)
					}
					return nil
				}, "a", "b")
				for i, res := range ends {
					if res.Status != oncemill.StatusDone || res.Attempt != 1 {
						t.Errorf("call %d ended with %+v, want the first attempt", i, res)
					}
				}
				if len(s.ran) != 3 {
					t.Errorf("calls ran as %v, want together, then each alone", s.ran)
				}
				if n := memory.claimed(); n != 2 {
					t.Errorf("%d claims for two calls", n)
				}
				g.Close()
			})
		})
	}
}

// A call whose error cannot be read does not take its neighbours along.
func TestStartBatch_AnErrorThatPanicsEndsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		ends := together(t, g, func(context.Context, []int) []error {
			return []error{nil, (*nilUnwrapper)(nil), (*nilError)(nil)}
		}, "a", "b", "c")
		for i, want := range []oncemill.Status{oncemill.StatusDone, 0, oncemill.StatusRetry} {
			if ends[i].Status != want {
				t.Errorf("call %d ended with %+v, want status %v", i, ends[i], want)
			}
		}
	})
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// If the policy parks started runs, the effects of a batch may have happened: it is not repeated.
func TestStartBatch_IrreversibleBatchesAreNotRepeated(t *testing.T) {
	boom := errors.New("boom")
	for name, half := range map[string]func() []error{
		"a panic":            func() []error { panic("half of it is done") },
		"one without":        func() []error { return []error{oncemill.NoEffect(boom)} }, // of three
		"two, one without":   func() []error { return []error{boom, oncemill.NoEffect(boom)} },
		"one for good":       func() []error { return []error{oncemill.Permanent(boom)} },
		"one not counted":    func() []error { return []error{oncemill.Uncounted(oncemill.NoEffect(boom))} },
		"more than messages": func() []error { return make([]error, 4) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				g := newGuard(t, newStore(t), oncemill.Irreversible())
				var s shapes
				together(t, g, func(_ context.Context, calls []int) []error {
					s.note(calls)
					return half()
				}, "a", "b", "c")
				if len(s.ran) != 1 {
					t.Errorf("calls ran as %v, want once", s.ran)
				}
				for _, id := range []string{"a", "b", "c"} {
					c := call(id)
					res, err := g.Run(t.Context(), c, (&counter{}).run)
					if err != nil || res.Outcome.Kind != dedupstore.Unknown {
						t.Errorf("%s is %+v, %v, want unknown", id, res, err)
					}
					if name == "one without" && !strings.Contains(res.Outcome.Reason, "boom") {
						t.Errorf("the reason is %q, without what the handler returned", res.Outcome.Reason)
					}
				}
			})
		})
	}
}

func TestStartBatch_RunsACallAloneAfterTwoRunsThatCrashed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "killed")
		g := newGuard(t, store, oncemill.Policy{Lease: 3 * time.Second})
		var s shapes
		together(t, g, func(_ context.Context, calls []int) []error {
			s.note(calls)
			return nil
		}, "fresh", "killed", "other")
		if len(s.ran) != 2 || !slices.Equal(s.ran[0], []int{0, 2}) || !slices.Equal(s.ran[1], []int{1}) {
			t.Errorf("calls ran as %v, want the one that was killed alone, after the others", s.ran)
		}
	})
}

// A call whose neighbour's delivery ends is interrupted, and has its attempt given back.
func TestStartBatch_ANeighboursEndCostsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 1})
		calls := []oncemill.Call{call("revoked"), call("neighbour")}
		revoked, revoke := context.WithCancel(t.Context())
		ends := make(chan error, 2)
		g.StartBatch(t.Context(), calls, []context.Context{revoked, t.Context()},
			func(ctx context.Context, _ []int) []error {
				revoke()
				<-ctx.Done()
				return []error{ctx.Err(), ctx.Err()}
			}, func(_ int, _ oncemill.Result, err error) { ends <- err })
		for range calls {
			if !answertest.Want(t, <-ends, oncemill.StatusRetry).Uncounted {
				t.Error("the retry costs an attempt")
			}
		}
	})
}

// What interrupted a batch that failed as a whole is none of those that run alone afterwards.
func TestStartBatch_AnInterruptedBatchDoesNotInterruptItsCallsAlone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 1})
		calls := []oncemill.Call{call("revoked"), call("neighbour")}
		revoked, revoke := context.WithCancel(t.Context())
		ends := make(chan oncemill.Result, 1)
		g.StartBatch(t.Context(), calls, []context.Context{revoked, t.Context()},
			func(ctx context.Context, which []int) []error {
				if len(which) > 1 {
					revoke()
					<-ctx.Done()
					return []error{ctx.Err()}
				}
				time.Sleep(time.Second) // virtual
				if err := ctx.Err(); which[0] == 1 && err != nil {
					t.Errorf("it is interrupted, too: %v", context.Cause(ctx))
				}
				return []error{errors.New("no")}
			}, func(i int, res oncemill.Result, _ error) {
				if i == 1 {
					ends <- res
				}
			})
		if res := <-ends; res.Outcome.Kind != dedupstore.Failed || !res.Outcome.Exhausted {
			t.Errorf("ended with %+v, want a failure after its only attempt", res)
		}
		g.Close()
	})
}

// A watchedContext counts what waits for its end.
type watchedContext struct {
	context.Context
	waiting *atomic.Int32
}

// Value hides what the context is made of, which package context would ask instead.
func (watchedContext) Value(any) any { return nil }

func (c watchedContext) AfterFunc(f func()) (stop func() bool) {
	c.waiting.Add(1)
	inner := context.AfterFunc(c.Context, f)
	return func() bool { c.waiting.Add(-1); return inner() }
}

// The context of a batch ends with it, and leaves nothing behind at the contexts of its deliveries.
func TestStartBatch_ItsContextEndsWithIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		delivery, end := context.WithCancel(t.Context())
		defer end()
		var waiting atomic.Int32
		watched := watchedContext{delivery, &waiting}
		var kept context.Context
		g.StartBatch(t.Context(), []oncemill.Call{call("a"), call("b")}, []context.Context{watched, watched},
			func(ctx context.Context, _ []int) []error {
				if kept = ctx; waiting.Load() == 0 {
					t.Error("the end of the delivery would not end the batch")
				}
				return nil
			}, func(int, oncemill.Result, error) {})
		if kept.Err() == nil || waiting.Load() != 0 {
			t.Errorf("the batch is over; its context has ended with %v, %d wait for the delivery", kept.Err(), waiting.Load())
		}
		time.Sleep(time.Hour) // virtual
		if store.extended() > 0 {
			t.Errorf("its leases were extended %d times after that", store.extended())
		}
		g.Close()
	})
}

// The work for a failure, such as publishing its dead letter, does not keep the outcomes beside it from the store, nor
// batches that come after it. The leases of the batch are not extended any more.
func TestStartBatch_AFailureHoldsUpNoOutcomeBesideIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		calls := []oncemill.Call{call("a"), call("b"), call("c"), call("d")}
		contexts := slices.Repeat([]context.Context{t.Context()}, len(calls))
		var others sync.WaitGroup
		others.Add(3)
		published := make(chan struct{})
		no := oncemill.Permanent(errors.New("no"))
		g.StartBatch(t.Context(), calls, contexts, func(context.Context, []int) []error {
			return []error{no, nil, no, nil}
		}, func(i int, _ oncemill.Result, _ error) {
			if i > 0 {
				others.Done()
			} else {
				<-published
			}
		})
		others.Wait()
		close(published)
		g.Close()
	})
}

// A claim that is given back because its call has ended keeps nobody from the handler, although the store is silent.
func TestStartBatch_WhatIsGivenBackHoldsUpNone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		ctx, end := context.WithCancel(t.Context())
		store.claim = func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			a, err := apply()
			if a.Claim.Key.ID == "b" {
				end()
			}
			return a, err
		}
		handled := make(chan struct{})
		store.settle = func(st dedupstore.Settlement, apply func() error) error {
			if _, release := st.(dedupstore.Release); release {
				select {
				case <-handled:
				case <-time.After(20 * time.Second):
					t.Error("the handler waits for it")
				}
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{})
		g.StartBatch(t.Context(), []oncemill.Call{call("a"), call("b"), call("c")},
			[]context.Context{t.Context(), ctx, t.Context()}, func(_ context.Context, which []int) []error {
				if !slices.Equal(which, []int{0, 2}) {
					t.Errorf("calls %v were handled", which)
				}
				close(handled)
				return nil
			}, func(int, oncemill.Result, error) {})
		g.Close()
	})
}

// A handler may keep its context and its runs for longer than its batch lasts: they stay its own.
func TestStartBatch_WhatHandlersKeepStaysTheirs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		var zombies sync.WaitGroup
		over := make(chan struct{})
		for n := range 64 {
			ids := []string{fmt.Sprint("a", n), fmt.Sprint("b", n)}
			together(t, g, func(ctx context.Context, calls []int) []error {
				runs := oncemill.RunsFromContext(ctx)
				zombies.Go(func() {
					for again := true; again; {
						select {
						case <-over:
							again = false
						case <-time.After(time.Second):
						}
						kept := oncemill.RunsFromContext(ctx)
						for i, call := range calls {
							if runs[i].Key.ID != ids[call] || kept[i] != runs[i] {
								t.Errorf("the run of %s has become %+v and %+v", ids[call], runs[i], kept[i])
							}
						}
					}
				})
				return nil
			}, ids...)
			one := call(fmt.Sprint("c", n))
			if _, err := g.Run(t.Context(), one, func(ctx context.Context) (dedupstore.Outcome, error) {
				zombies.Go(func() {
					<-over
					if got := oncemill.FromContext(ctx); got.Key != one.Key || got.Attempt != 1 {
						t.Errorf("the run of %s has become %+v", one.Key.ID, got)
					}
				})
				return dedupstore.Outcome{}, nil
			}); err != nil {
				t.Error(err)
			}
		}
		close(over)
		zombies.Wait()
	})
}

// A muteStore answers no extension of "mute", and none at all after the first of another key.
type muteStore struct {
	dedupstore.Store
	answered atomic.Bool
}

func (s *muteStore) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	if extensions[0].Claim.Key.ID == "mute" || !s.answered.CompareAndSwap(false, true) {
		<-ctx.Done()
		return slices.Repeat([]error{ctx.Err()}, len(extensions))
	}
	return s.Store.Extend(ctx, extensions)
}

// A slowStore takes a second for each extension.
type slowStore struct{ dedupstore.Store }

func (s slowStore) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	time.Sleep(time.Second) // virtual
	return s.Store.Extend(ctx, extensions)
}

// The runs of a batch are marked as started together: with one after the other the first leases could end meanwhile.
func TestStartBatch_RunsAreMarkedTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, slowStore{newStore(t)}, oncemill.Irreversible())
		began := time.Now()
		together(t, g, func(_ context.Context, calls []int) []error {
			if took := time.Since(began); took > 2*time.Second || len(calls) != 4 {
				t.Errorf("%d calls run after %v, want four after two answers at most", len(calls), took)
			}
			return nil
		}, "a", "b", "c", "d")
		g.Close()
	})
}

// What cannot be marked as started does not run, and says why; its neighbours do.
func TestStartBatch_WhatCannotBeMarkedDoesNotRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		marked := 0
		store.extend = func(apply func() error) error {
			if marked++; marked > 1 {
				return dedupstore.ErrClaimLost
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Irreversible())
		ends := together(t, g, func(context.Context, []int) []error { return nil }, "a", "b")
		statuses := []oncemill.Status{ends[0].Status, ends[1].Status}
		slices.Sort(statuses)
		want := []oncemill.Status{oncemill.StatusDone, oncemill.StatusLost}
		if slices.Sort(want); !slices.Equal(statuses, want) {
			t.Errorf("they ended with %+v, want one done and one lost", ends)
		}
		g.Close()
	})
}

// A lease may end while a neighbour's run is being marked as started: then its handler does not start.
func TestStartBatch_WhoseLeaseEndsBeforeTheOthersAreStartedDoesNotRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, &muteStore{Store: newStore(t)}, oncemill.Irreversible())
		ends := together(t, g, func(_ context.Context, calls []int) []error {
			t.Errorf("calls %v run", calls)
			return nil
		}, "started", "mute")
		for i, res := range ends {
			if res.Status != oncemill.StatusStoreDown {
				t.Errorf("call %d ended with %+v, want that the store did not answer", i, res)
			}
		}
		g.Close()
	})
}
