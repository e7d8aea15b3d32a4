package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// crash has runs of keys end with their processes, one after the other.
func crash(t *testing.T, store dedupstore.Store, times int, ids ...string) {
	t.Helper()
	for n := range times {
		for _, id := range ids {
			answer, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
				Key: key(id), Owner: fmt.Sprintf("dead-process-%04d", n), Lease: time.Second, Retention: time.Hour,
				MaxAttempts: 100,
			})
			if err != nil || answer.Status != dedupstore.AcquiredRun {
				t.Fatalf("%+v, %v, want a run that crashes", answer, err)
			}
		}
		time.Sleep(2 * time.Second) // virtual
	}
}

// A scene has the runs of calls, and who is in one.
type scene struct {
	g       *oncemill.Guard
	entered chan string
	leave   chan struct{} // has a run end
	ended   chan error
}

func newScene(t *testing.T, store dedupstore.Store) *scene {
	return &scene{
		g: newGuard(t, store, oncemill.Policy{}), entered: make(chan string, 100), leave: make(chan struct{}),
		ended: make(chan error, 100),
	}
}

// run makes a call, and waits until it waits for something.
func (s *scene) run(ctx context.Context, c oncemill.Call) {
	go func() {
		_, err := s.g.Run(ctx, c, func(context.Context) (dedupstore.Outcome, error) {
			s.entered <- c.Key.ID
			<-s.leave
			return dedupstore.Outcome{}, nil
		})
		s.ended <- err
	}()
	synctest.Wait()
}

// in returns who has entered since it was called last.
func (s *scene) in() (ids []string) {
	synctest.Wait()
	for len(s.entered) > 0 {
		ids = append(ids, <-s.entered)
	}
	return ids
}

// want wants these to have entered, and nobody else.
func (s *scene) want(t *testing.T, when string, ids ...string) {
	t.Helper()
	if got := s.in(); !slices.Equal(got, ids) {
		t.Errorf("%s %q run, want %q", when, got, ids)
	}
}

func TestGuard_SuspectsRunOneAtATimeInTheirOrder(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		suspects := []string{"s1", "s2", "s3", "s4"}
		crash(t, store, 2, suspects...)
		crash(t, store, 1, "once")
		s := newScene(t, store)
		for _, id := range suspects {
			s.run(t.Context(), call(id)) // which does not wait for busy keys
		}
		s.want(t, "at first", "s1")
		s.run(t.Context(), call("fresh"))
		s.want(t, "beside the suspect", "fresh")
		s.run(t.Context(), call("once"))
		s.want(t, "beside the suspect, after one crash,", "once")
		time.Sleep(time.Minute)
		s.want(t, "a minute later")
		s.leave <- struct{}{} // perhaps fresh, so that nobody follows
		s.leave <- struct{}{}
		s.leave <- struct{}{}
		for _, id := range suspects[1:] {
			s.want(t, "then", id)
			s.leave <- struct{}{}
		}
		for range 6 {
			if err := <-s.ended; err != nil {
				t.Error(err)
			}
		}
		for _, id := range suspects { // the refusals took no attempt
			res, err := s.g.Run(t.Context(), call(id), (&counter{}).run)
			if err != nil || !res.Duplicate || store.look(t, id).Attempts != 3 {
				t.Errorf("%s is %+v, %v after %d attempts, want handled in the third", id, res, err,
					store.look(t, id).Attempts)
			}
		}
	})
}

func TestGuard_AnOutcomeOrAFailureEndsTheSuspicion(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "a", "b")
		g := newGuard(t, store, oncemill.Policy{})
		_, err := g.Run(t.Context(), call("a"), func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.RetryAfter(0, errors.New("later"))
		})
		answertest.Want(t, err, oncemill.StatusRetry)
		if a := claimed(t, g, call("a")); !a.Granted() {
			t.Error("a message that has failed since waits for its turn")
		}
		_, err = g.Run(t.Context(), call("b"), func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.Uncounted(errors.New("interrupted"))
		})
		answertest.Want(t, err, oncemill.StatusRetry)
		time.Sleep(time.Minute)
		if b := claimed(t, g, call("b")); b.Granted() {
			t.Error("a run that was interrupted says that the message kills no process")
		}
	})
}

// The turn lasts until the outcome is stored: else the next suspect could end the process before.
func TestGuard_ATurnLastsUntilTheOutcomeIsStored(t *testing.T) {
	for name, attempt := range map[string]func(*oncemill.Guard, context.Context, oncemill.Call, oncemill.RunFunc, func(error)){
		"Run": func(g *oncemill.Guard, ctx context.Context, c oncemill.Call, fn oncemill.RunFunc, done func(error)) {
			_, err := g.Run(ctx, c, fn)
			done(err)
		},
		"Start": func(g *oncemill.Guard, ctx context.Context, c oncemill.Call, fn oncemill.RunFunc, done func(error)) {
			g.Start([]context.Context{ctx}, []oncemill.Call{c},
				func(ctx context.Context, _ int) (dedupstore.Outcome, error) { return fn(ctx) },
				func(_ int, _ oncemill.Result, err error) { done(err) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				crash(t, store, 2, "a", "b")
				stored := make(chan struct{})
				store.settle = func(_ dedupstore.Settlement, apply func() error) error {
					<-stored
					return apply()
				}
				s := newScene(t, store)
				go attempt(s.g, t.Context(), call("a"), (&counter{}).run, func(err error) { s.ended <- err })
				synctest.Wait()
				s.run(t.Context(), call("b"))
				s.want(t, "before the outcome is stored")
				close(stored)
				s.want(t, "after that", "b")
				close(s.leave)
				for range 2 {
					if err := <-s.ended; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// What is to start no more does not wait for its turn, and those behind it move up.
func TestGuard_AWaitForATurnEndsWithTheDelivery(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "a", "stopped", "cancelled", "b")
		s := newScene(t, store)
		s.run(t.Context(), call("a"))
		stopping := make(chan struct{})
		stopped := call("stopped")
		stopped.Stopping = stopping
		s.run(t.Context(), stopped)
		gone := errors.New("partition revoked")
		ctx, cancel := context.WithCancelCause(t.Context())
		s.run(ctx, call("cancelled"))
		s.run(t.Context(), call("b"))
		close(stopping)
		answertest.Want(t, <-s.ended, oncemill.StatusBusy, oncemill.StatusNotDue)
		cancel(gone)
		if err := <-s.ended; !errors.Is(err, gone) {
			t.Errorf("ended with %v, want %v", err, gone)
		}
		s.want(t, "before", "a")
		s.leave <- struct{}{}
		s.want(t, "then", "b")
		s.leave <- struct{}{}
		for range 2 {
			if err := <-s.ended; err != nil {
				t.Error(err)
			}
		}
		for _, id := range []string{"stopped", "cancelled"} {
			if n := store.look(t, id).Attempts; n != 2 {
				t.Errorf("%s has %d attempts, want the 2 of before", id, n)
			}
		}
	})
}

// What may not start any more does not, although its turn comes at the same time, and keeps no turn.
func TestGuard_AStoppedSuspectDoesNotStartWhenItsTurnComes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "stopped", "b")
		g := newGuard(t, store, oncemill.Policy{})
		stopping := make(chan struct{})
		close(stopping)
		stopped := call("stopped")
		stopped.Stopping = stopping
		for range 50 { // either may come first
			var h counter
			_, err := g.Run(t.Context(), stopped, h.run)
			answertest.Want(t, err, oncemill.StatusNotDue)
			h.want(t, 0)
		}
		if _, err := g.Run(t.Context(), call("b"), (&counter{}).run); err != nil {
			t.Error(err)
		}
	})
}

// The wait for a turn is none for the key: that may be busy afterwards, for as long as the call may wait.
func TestGuard_AWaitForATurnIsNoneForTheKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "a", "b")
		s := newScene(t, store)
		s.run(t.Context(), call("a"))
		waits := call("b")
		waits.MaxWait = 10 * time.Second
		s.run(t.Context(), waits)
		time.Sleep(time.Minute) // virtual
		holder := abandonedClaim(t, store, "b")
		time.AfterFunc(5*time.Second, func() {
			finish := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour}
			if err := dedupstore.SettleOne(t.Context(), store, holder, finish); err != nil {
				t.Error(err)
			}
		})
		s.leave <- struct{}{}
		for range 2 {
			if err := <-s.ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// A suspect whose goroutine ends leaves its turn.
func TestGuard_ATurnEndsWithItsGoroutine(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "a", "b")
		g := newGuard(t, store, oncemill.Policy{})
		exits := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			runtime.Goexit()
			return dedupstore.Outcome{}, nil
		}}
		if err := started(t, g, []context.Context{t.Context()}, &exits, "a")[0]; err == nil {
			t.Error("it has ended well")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := g.Run(ctx, call("b"), (&counter{}).run); err != nil {
			t.Error(err)
		}
		g.Close()
	})
}

// A suspect that another process has taken meanwhile holds up nobody here.
func TestGuard_ABusySuspectLeavesItsTurn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "a", "taken", "b")
		s, other := newScene(t, store), newScene(t, store)
		s.run(t.Context(), call("a"))
		taken := call("taken")
		taken.MaxWait = time.Hour
		s.run(t.Context(), taken)
		s.run(t.Context(), call("b"))
		other.run(t.Context(), call("taken"))
		other.want(t, "elsewhere", "taken")
		s.want(t, "at first", "a")
		s.leave <- struct{}{}
		s.want(t, "while the second one is busy", "b")
		close(s.leave)
		close(other.leave)
		for range 3 {
			if err := <-s.ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// A handler may use its own guard. What it calls crashed with it each time, and must not wait for its own turn.
func TestGuard_ASuspectInsideASuspectRuns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "outer", "between", "inner", "next")
		g, other := newGuard(t, store, oncemill.Policy{}), newGuard(t, store, oncemill.Policy{})
		inner := counter{}
		_, err := g.Run(t.Context(), call("outer"), func(ctx context.Context) (dedupstore.Outcome, error) {
			_, err := other.Run(ctx, call("between"), func(ctx context.Context) (dedupstore.Outcome, error) {
				_, err := g.Run(ctx, call("inner"), inner.run)
				return dedupstore.Outcome{}, err
			})
			return dedupstore.Outcome{}, err
		})
		if err != nil {
			t.Error(err)
		}
		inner.want(t, 1)
		if _, err := g.Run(t.Context(), call("next"), (&counter{}).run); err != nil {
			t.Error(err)
		}
	})
}

// A run may hold what a suspect waits for. So a suspect inside it waits for no turn.
func TestGuard_ASuspectInsideARunHoldsNobodyUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "suspect", "inner")
		g := newGuard(t, store, oncemill.Policy{})
		place := make(chan struct{}, 1) // as a connection
		takes := func(context.Context) (dedupstore.Outcome, error) {
			place <- struct{}{}
			<-place
			return dedupstore.Outcome{}, nil
		}
		inner, ended := counter{}, make(chan error, 1)
		within, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := g.Run(within, call("outer"), func(ctx context.Context) (dedupstore.Outcome, error) {
			place <- struct{}{}
			defer func() { <-place }()
			go func() {
				_, err := g.Run(context.WithoutCancel(t.Context()), call("suspect"), takes)
				ended <- err
			}()
			synctest.Wait()
			_, err := g.Run(ctx, call("inner"), inner.run)
			if e := answertest.Want(t, err, oncemill.StatusNotDue); e.Wait <= 0 {
				t.Errorf("%+v, want a time to come again", e)
			}
			return dedupstore.Outcome{}, nil
		})
		if err = errors.Join(err, <-ended); err != nil {
			t.Error(err)
		}
		if _, err := g.Run(t.Context(), call("inner"), inner.run); err != nil {
			t.Error(err)
		}
		inner.want(t, 1)
	})
}

func TestGuard_ATurnEndsWithAPanic(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "a", "b")
		g := newGuard(t, store, oncemill.Policy{})
		_, err := g.Run(t.Context(), call("a"), func(context.Context) (dedupstore.Outcome, error) { panic("no") })
		answertest.Want(t, err, oncemill.StatusRetry)
		if _, err := g.Run(t.Context(), call("b"), (&counter{}).run); err != nil {
			t.Error(err)
		}
	})
}

// Many suspects at once, of which some are given up: each that runs does so alone, and all end.
func TestGuard_ManySuspectsNeverRunBesideEachOther(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const n = 100
		store := newStore(t)
		var ids []string
		for i := range n {
			ids = append(ids, fmt.Sprintf("m%d", i))
		}
		crash(t, store, 2, ids...)
		g := newGuard(t, store, oncemill.Policy{})
		alone := make(chan struct{}, 1)
		ended := make(chan error, n)
		for i, id := range ids {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7+1)*time.Second)
			defer cancel()
			c := call(id)
			go g.Start([]context.Context{ctx}, []oncemill.Call{c}, func(context.Context, int) (dedupstore.Outcome, error) {
				select {
				case alone <- struct{}{}:
					defer func() { <-alone }()
				default:
					t.Error("two suspects run beside each other")
				}
				time.Sleep(100 * time.Millisecond)
				return dedupstore.Outcome{}, nil
			}, func(_ int, _ oncemill.Result, err error) { ended <- err })
		}
		ran := 0
		for range n {
			if err := <-ended; err == nil {
				ran++
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if ran < n/4 {
			t.Errorf("%d of %d ran", ran, n)
		}
	})
}

// A suspect whose claim fails in its turn is bypassed, where the policy fails open, and still has the turn.
func TestGuard_ABypassedSuspectDoesNotWaitForItself(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "outer", "inner")
		var claims atomic.Int32
		store.claim = func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			if claims.Add(1) == 2 { // the claim in its turn
				return dedupstore.Answer{}, errDown
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{StoreDown: oncemill.FailOpen})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var inner counter
		_, err := g.Run(ctx, call("outer"), func(ctx context.Context) (dedupstore.Outcome, error) {
			_, err := g.Run(ctx, call("inner"), inner.run)
			return dedupstore.Outcome{}, err
		})
		if err != nil {
			t.Error(err)
		}
		inner.want(t, 1)
	})
}
