package oncemill_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

func producing(ids ...string) func(context.Context, int) (dedupstore.Outcome, error) {
	return func(context.Context, int) (dedupstore.Outcome, error) {
		var o dedupstore.Outcome
		for _, id := range ids {
			o.Produced = append(o.Produced, dedupstore.Produced{ID: id, Topic: "out", Payload: []byte("body of " + id)})
		}
		return o, nil
	}
}

func TestGuard_FailedPublishIsRepeatedByTheRedeliveryWithoutARun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: producing("o1", "o2")}
		p := publisher{fail: func(call int) error {
			if call == 1 {
				return errors.New("broker is down")
			}
			return nil
		}}
		c := call("m1")
		c.Publish = p.publish
		_, err := g.Run(t.Context(), c, h.run)
		unpublished := answertest.Want(t, err, oncemill.StatusUnpublished)
		time.Sleep(unpublished.Wait)
		res, err := g.Run(t.Context(), c, h.run)
		if err != nil || !res.Duplicate {
			t.Fatalf("redelivery: %+v, %v", res, err)
		}
		p.want(t, "o1", "o2")
		if res, err = g.Run(t.Context(), c, h.run); err != nil {
			t.Fatal(err)
		}
		if got := res.Outcome.Produced; len(got) != 2 || got[0].ID != "o1" || got[0].Payload != nil {
			t.Errorf("a duplicate afterwards sees %v, want IDs without bytes", got)
		}
		p.want(t, "o1", "o2")
		h.want(t, 1)
	})
}

func TestGuard_CrashBetweenFinishAndPublishIsMadeGoodByACopy(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		claim := abandonedClaim(t, store, "m1")
		o, _ := producing("o1")(t.Context(), 1)
		o.Kind = dedupstore.Succeeded
		if err := dedupstore.SettleOne(t.Context(), store, claim, dedupstore.Finish{
			Outcome: o, Retention: time.Hour,
		}); err != nil {
			t.Fatal(err)
		}
		g := newGuard(t, store, oncemill.Policy{})
		var h counter
		var p publisher
		c := call("m1")
		c.Publish, c.MaxWait = p.publish, time.Minute
		if _, err := g.Run(t.Context(), c, h.run); err != nil {
			t.Fatal(err)
		}
		p.want(t, "o1")
		h.want(t, 0)
	})
}

func TestGuard_TwoCopiesNeverPublishSideBySide(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: producing("o1")}
		p := publisher{takes: 2 * time.Minute, fail: func(call int) error {
			if call < 4 {
				return errors.New("broker is slow, then refuses")
			}
			return nil
		}}
		c := call("m1")
		c.Publish, c.MaxWait = p.publish, time.Hour
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for {
					_, err := g.Run(t.Context(), c, h.run)
					if err == nil {
						return
					}
					answertest.Want(t, err, oncemill.StatusUnpublished)
				}
			})
		}
		wg.Wait()
		if p.most != 1 {
			t.Errorf("%d published side by side", p.most)
		}
		p.want(t, "o1")
		h.want(t, 1)
	})
}

func TestGuard_AttemptsExhaustedByCrashesEndInExactlyOneDeadLetter(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		for range 3 {
			abandonedClaim(t, store, "m1", func(r *dedupstore.Request) { r.MaxAttempts = 3 })
			time.Sleep(30 * time.Second)
		}
		g := newGuard(t, store, oncemill.Policy{MaxAttempts: 3})
		var h counter
		p := publisher{takes: time.Second}
		c := call("m1")
		c.Publish, c.DeadLetter, c.MaxWait = p.publish, deadLetter, time.Minute
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				res, err := g.Run(t.Context(), c, h.run)
				if err != nil || !res.Outcome.Exhausted || res.Failure() == nil {
					t.Errorf("%+v, %v; want exhausted", res, err)
				}
			})
		}
		wg.Wait()
		p.want(t, "dead:failed")
		h.want(t, 0)
	})
}

// Without an outcome the message would run again and again, and its claim would be kept as long as the process lives.
func TestGuard_PanicOfDeadLetterLeavesItOut(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		log := &lines{level: slog.LevelError}
		g := newGuard(t, store, oncemill.Policy{MaxAttempts: 1, Logger: slog.New(log)})
		c := call("m1")
		c.DeadLetter = func(dedupstore.Outcome, int, uint64) []dedupstore.Produced { panic("no topic") }
		c.MaxWait = time.Minute // the first one finds the attempts spent
		abandonedClaim(t, store, "m1", func(r *dedupstore.Request) { r.MaxAttempts = 1 })
		for _, id := range []string{"m1", "m2"} {
			c.Key = key(id)
			res, err := g.Run(t.Context(), c, func(context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{}, oncemill.Permanent(errors.New("card refused"))
			})
			if err != nil || res.Outcome.Kind != dedupstore.Failed || len(res.Outcome.Produced) != 0 {
				t.Errorf("%+v, %v", res, err)
			}
		}
		if len(log.lines) != 2 {
			t.Errorf("the log says %q, want a line for each letter", log.lines)
		}
	})
}

func TestGuard_RetryableErrorOnTheLastAttemptIsDeadLettered(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 2})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.RetryAfter(0, errors.New("still no"))
		}}
		var p publisher
		c := call("m1")
		c.Publish, c.DeadLetter = p.publish, deadLetter
		_, err := g.Run(t.Context(), c, h.run)
		answertest.Want(t, err, oncemill.StatusRetry)
		for range 2 {
			res, err := g.Run(t.Context(), c, h.run)
			if err != nil || !res.Outcome.Exhausted || res.Outcome.Reason != "still no" {
				t.Errorf("%+v, %v", res, err)
			}
		}
		p.want(t, "dead:failed")
		h.want(t, 2)
	})
}

func TestGuard_CallerPublishesUnderAHeartbeat(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: producing("o1")}
		first, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || first.Publication == nil {
			t.Fatalf("%+v, %v; want a publication", first, err)
		}
		time.Sleep(10 * time.Minute)
		_, err = g.Run(t.Context(), call("m1"), h.run)
		answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)

		first.Publication.Abandon()
		c := call("m1")
		c.MaxWait = 5 * time.Second
		second, err := g.Run(t.Context(), c, h.run)
		if err != nil || second.Publication == nil {
			t.Fatalf("%+v, %v; want the publication of the first run", second, err)
		}
		if m := second.Publication.Messages(); len(m) != 1 || m[0].ID != "o1" || string(m[0].Payload) != "body of o1" {
			t.Errorf("messages %v", m)
		}
		if err := second.Publication.Done(); err != nil {
			t.Error(err)
		}
		third, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || third.Publication != nil || !third.Duplicate {
			t.Errorf("%+v, %v; want nothing left to publish", third, err)
		}
		h.want(t, 1)
	})
}

func TestGuard_OutputsOverTheLimitArePublishedBeforeTheRunFinishes(t *testing.T) {
	for _, mode := range []string{"guard publishes", "caller publishes"} {
		t.Run(mode, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				g := newGuard(t, store, oncemill.Policy{MaxProducedBytes: 100})
				h := counter{then: producing(strings.Repeat("x", 99))}
				var p publisher
				c := call("m1")
				if mode == "guard publishes" {
					c.Publish = func(ctx context.Context, m []dedupstore.Produced) error {
						if len(store.settled) != 0 {
							t.Error("settled before it was published")
						}
						return p.publish(ctx, m)
					}
				}
				res, err := g.Run(t.Context(), c, h.run)
				if err != nil {
					t.Fatal(err)
				}
				if res.Publication != nil {
					p.publish(t.Context(), res.Publication.Messages())
					if err := res.Publication.Done(); err != nil {
						t.Fatal(err)
					}
				}
				if len(p.published) != 1 || len(store.settled) != 1 {
					t.Errorf("published %d, settled %d times; want both once", len(p.published), len(store.settled))
				}
				if dup, err := g.Run(t.Context(), c, h.run); err != nil || !dup.Duplicate || len(dup.Outcome.Produced) != 1 {
					t.Errorf("%+v, %v", dup, err)
				}
				h.want(t, 1)
			})
		})
	}
}

// Outputs and dead letters of just the limit are in the record, from which another process can publish them.
func TestGuard_ProducedBytesOfTheLimitAreStored(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{MaxProducedBytes: 100})
		one := []dedupstore.Produced{{ID: "out", Topic: "t", Payload: bytes.Repeat([]byte("x"), 100)}}
		produces := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Produced: one}, nil
		}}
		fails := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.Permanent(errDown)
		}}
		for id, h := range map[string]*counter{"produces": &produces, "fails": &fails} {
			c := call(id)
			c.DeadLetter = func(dedupstore.Outcome, int, uint64) []dedupstore.Produced { return one }
			c.Publish = func(context.Context, []dedupstore.Produced) error {
				if state := store.look(t, id).State; state != dedupstore.Publishing {
					t.Errorf("%s: published while the record is %s", id, state)
				}
				return nil
			}
			if _, err := g.Run(t.Context(), c, h.run); err != nil {
				t.Fatal(err)
			}
		}
		large := call("header")
		large.Publish = func(context.Context, []dedupstore.Produced) error {
			if state := store.look(t, "header").State; state != dedupstore.Running {
				t.Errorf("headers over the limit are published while the record is %s", state)
			}
			return nil
		}
		stored := len(store.settled)
		if _, err := g.Run(t.Context(), large, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{
				ID: "out", Topic: "t", Header: map[string]string{strings.Repeat("k", 51): strings.Repeat("v", 50)},
			}}}, nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, s := range store.settled[:stored] {
			if finish, is := s.(dedupstore.Finish); is && (finish.Withheld || len(finish.Outcome.Produced) == 0) {
				t.Errorf("stored without its bytes: %+v", finish)
			}
		}
	})
}

func TestGuard_PublisherThatLostItsLeaseMayStillAcknowledge(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		h := counter{then: producing("o1")}
		c := call("m1")
		c.Publish = func(context.Context, []dedupstore.Produced) error {
			store.settle = func(dedupstore.Settlement, func() error) error { return dedupstore.ErrClaimLost }
			return nil
		}
		if _, err := g.Run(t.Context(), c, h.run); err != nil {
			t.Errorf("%v: what PUBLISHING held has been published", err)
		}
	})
}

func TestGuard_OutputsOverTheLimitAreNotPublishedAfterTheLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{MaxProducedBytes: 1, Lease: 3 * time.Second})
		h := counter{then: func(ctx context.Context, run int) (dedupstore.Outcome, error) {
			store.down.Store(true)
			time.Sleep(4 * time.Second) // it does not heed its context, which has ended
			return producing("o1")(ctx, run)
		}}
		var p publisher
		c := call("m1")
		c.Publish = p.publish
		_, err := g.Run(t.Context(), c, h.run)
		answertest.Want(t, err, oncemill.StatusUnrecorded)
		p.want(t) // nothing: another owner may be publishing
		store.down.Store(false)
		h.then = producing("o1")
		if _, err := g.Run(t.Context(), c, h.run); err != nil {
			t.Fatal(err)
		}
		p.want(t, "o1")
		h.want(t, 2)
	})
}

func TestGuard_InvalidOutputsBecomeAFailureNotALoop(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: producing("")}
		for range 2 {
			res, err := g.Run(t.Context(), call("m1"), h.run)
			if err != nil || res.Outcome.Kind != dedupstore.Failed || !strings.Contains(res.Outcome.Reason, "Produced[0].ID") {
				t.Errorf("%+v, %v; want a failure that names the output", res, err)
			}
		}
		h.want(t, 1)
	})
}

func TestGuard_StoreDownInFlightHoldsAndResumesByItself(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.down.Store(true)
		g := newGuard(t, store, oncemill.Policy{})
		var h counter
		_, err := g.Run(t.Context(), call("m1"), h.run)
		if e := answertest.Want(t, err, oncemill.StatusStoreDown); !errors.Is(e, errDown) {
			t.Errorf("%v", err)
		}
		done := make(chan error)
		go func() {
			c := call("m1")
			c.MaxWait = time.Hour
			_, err := g.Run(t.Context(), c, h.run)
			done <- err
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		h.want(t, 0)
		if n := store.claimed(); n > 200 {
			t.Errorf("%d claims in a minute: that is spinning", n)
		}
		store.down.Store(false)
		if err := <-done; err != nil {
			t.Error(err)
		}
		h.want(t, 1)
	})
}

func TestGuard_FailOpenRunsUnguarded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.down.Store(true)
		g := newGuard(t, store, oncemill.Policy{StoreDown: oncemill.FailOpen})
		res, err := g.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
			if run := oncemill.FromContext(ctx); run.Fence != 0 || run.ID("x") == "" {
				t.Errorf("run %+v, want fence 0", run)
			}
			return dedupstore.Outcome{}, nil
		})
		if err != nil || !res.Bypassed || res.Fence != 0 {
			t.Errorf("%+v, %v; want bypassed", res, err)
		}
	})
}

func TestGuard_UnreadableRecordIsNotBypassed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.claim = func(func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			return dedupstore.Answer{}, &dedupstore.RecordError{Key: "k", Problem: "version 9"}
		}
		g := newGuard(t, store, oncemill.Policy{StoreDown: oncemill.FailOpen})
		_, err := g.Run(t.Context(), call("m1"), nil)
		answertest.Want(t, err, oncemill.StatusStoreDown)
	})
}

func TestGuard_OutcomeThatCannotBeRecordedIsRetriedUntilTheLeaseEndsAndThenAnError(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		var log lines
		g := newGuard(t, store, oncemill.Policy{Logger: slog.New(&log)})
		var start time.Time
		_, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			store.down.Store(true)
			start = time.Now()
			return dedupstore.Outcome{}, nil
		})
		answertest.Want(t, err, oncemill.StatusUnrecorded)
		if took := time.Since(start); took < 29*time.Second || took > 31*time.Second {
			t.Errorf("gave up after %v, want the lease of 30s", took)
		}
		if last := log.attrs[len(log.attrs)-1]; last["settlement"] != "finish" {
			t.Errorf("the log says %v, want what was to be stored", last)
		}
	})
}

// The broker may be away for long, so that a dead letter cannot be published. Its failure must be remembered.
func TestGuard_AFailureWhoseDeadLetterWaitsIsRememberedForItsOwnWindow(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{Window: time.Hour, FailureWindow: 24 * time.Hour})
		h := &counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.Permanent(errors.New("no such card"))
		}}
		c := call("1")
		c.DeadLetter = deadLetter
		c.Publish = func(context.Context, []dedupstore.Produced) error { return errors.New("the broker is away") }
		for range 4 { // the run, and others that take its publish step over
			if _, err := g.Run(t.Context(), c, h.run); err == nil {
				t.Fatal("published")
			}
			time.Sleep(5 * time.Hour)
		}
		c.Publish = func(context.Context, []dedupstore.Produced) error { return nil }
		res, err := g.Run(t.Context(), c, h.run)
		if err != nil || !res.Duplicate || res.Outcome.Kind != dedupstore.Failed || h.runs.Load() != 1 {
			t.Errorf("%+v, %v after %d runs", res, err, h.runs.Load())
		}
	})
}

// What docs/operations.md admits of a policy that is changed.
func TestGuard_WhoPublishesAnOutcomeCountsItsWindowAnew(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		old, next := newGuard(t, store, oncemill.HighValue()), newGuard(t, store, oncemill.Policy{Window: time.Hour})
		h := &counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "out", Topic: "receipts"}}}, nil
		}}
		c := call("1")
		c.Publish = func(context.Context, []dedupstore.Produced) error { return errors.New("the broker is away") }
		if _, err := old.Run(t.Context(), c, h.run); err == nil {
			t.Fatal("published")
		}
		time.Sleep(time.Minute)
		c.Publish = func(context.Context, []dedupstore.Produced) error { return nil }
		for _, want := range []int32{1, 2} { // after the run, and after the shorter window
			if _, err := next.Run(t.Context(), c, h.run); err != nil || h.runs.Load() != want {
				t.Errorf("%d runs, %v; want %d", h.runs.Load(), err, want)
			}
			time.Sleep(2 * time.Hour)
		}
	})
}

// A dead letter's function that ends its goroutine holds the key no longer than its lease.
func TestStart_ADeadLetterThatExitsLeavesTheKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "m1")
		g := newGuard(t, store, oncemill.Policy{MaxAttempts: 2, Lease: 3 * time.Second})
		c := call("m1")
		c.DeadLetter = func(dedupstore.Outcome, int, uint64) []dedupstore.Produced { runtime.Goexit(); return nil }
		done := make(chan error, 1)
		g.Start([]context.Context{t.Context()}, []oncemill.Call{c},
			func(context.Context, int) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil },
			func(_ int, _ oncemill.Result, err error) { done <- err })
		if err := <-done; err == nil {
			t.Error("told of a success")
		}
		time.Sleep(time.Minute) // virtual
		res, err := newGuard(t, store, oncemill.Policy{MaxAttempts: 2}).Run(t.Context(), call("m1"), (&counter{}).run)
		if err != nil || res.Outcome.Kind != dedupstore.Failed {
			t.Errorf("a minute later %+v, %v, want the failure", res, err)
		}
	})
}

// A lease may be renewed while the publish step under it fails. The step is shortened after that, and can be taken over
// soon; if no renewal is under way it is shortened at once.
func TestGuard_FailedPublishIsTakenOverSoonThoughItsLeaseWasBeingRenewed(t *testing.T) {
	for name, slow := range map[string]time.Duration{"renewed": 0, "being renewed": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				store.extend = func(apply func() error) error {
					if store.extended() == 1 {
						time.Sleep(slow) // virtual
					}
					return apply()
				}
				g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second})
				c := call("m1")
				c.Publish = func(context.Context, []dedupstore.Produced) error {
					for store.extended() == 0 {
						time.Sleep(time.Millisecond) // virtual
					}
					return errDown
				}
				began := time.Now()
				_, err := g.Run(t.Context(), c, (&counter{then: producing("o1")}).run)
				unpublished := answertest.Want(t, err, oncemill.StatusUnpublished)
				if took := time.Since(began); took > 11500*time.Millisecond+slow {
					t.Errorf("the failure was told after %v", took)
				}
				time.Sleep(max(unpublished.Wait, slow) + time.Millisecond) // virtual
				var p publisher
				c.Publish = p.publish
				if _, err := g.Run(t.Context(), c, (&counter{}).run); err != nil {
					t.Errorf("when it was to be due: %v", err)
				}
				p.want(t, "o1")
			})
		})
	}
}

// The publish step has a lease of its own, from when the outcome was sent.
func TestGuard_PublishStepOfAQuickRunIsNotRenewedBeforeIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.settle = func(s dedupstore.Settlement, apply func() error) error {
			if f, finishes := s.(dedupstore.Finish); finishes && !f.Published {
				defer time.Sleep(2 * time.Second) // virtual
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second})
		c := call("m1")
		c.Publish = func(context.Context, []dedupstore.Produced) error {
			if store.extended() > 0 {
				t.Errorf("its lease was renewed %d times, two seconds after it began", store.extended())
			}
			return nil
		}
		if _, err := g.Run(t.Context(), c, func(context.Context) (dedupstore.Outcome, error) {
			time.Sleep(9 * time.Second) // virtual: not quite a third of the lease
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "out", Topic: "t"}}}, nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// A publish step that failed is due after the backoff, or, if it could not be shortened, after its lease.
func TestGuard_FailedPublishSaysWhenItIsDue(t *testing.T) {
	for name, c := range map[string]struct {
		extend func(func() error) error
		want   time.Duration
	}{
		"shortened":     {nil, 3 * time.Second},
		"not shortened": {func(func() error) error { return errDown }, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				store.extend = c.extend
				g := newGuard(t, store, oncemill.Policy{
					Lease: 30 * time.Second, Backoff: oncemill.Backoff{Min: 3 * time.Second, Max: 3 * time.Second},
				})
				one := call("m1")
				one.Publish = func(context.Context, []dedupstore.Produced) error { return errDown }
				_, err := g.Run(t.Context(), one, (&counter{then: producing("o1")}).run)
				if wait := answertest.Want(t, err, oncemill.StatusUnpublished).Wait; wait < c.want*3/4 || wait > c.want*5/4 {
					t.Errorf("due in %v, want some %v", wait, c.want)
				}
				synctest.Wait() // for what is under way
				n := store.extended()
				time.Sleep(time.Hour) // virtual
				if store.extended() != n {
					t.Errorf("its lease was extended %d times after that", store.extended()-n)
				}
			})
		})
	}
}

// What was published is renewed no more.
func TestGuard_PublishStepEndsItsHeartbeat(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		var p publisher
		c := call("m1")
		c.Publish = p.publish
		if _, err := newGuard(t, store, oncemill.Policy{}).Run(t.Context(), c, (&counter{then: producing("o1")}).run); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // for what is under way
		n := store.extended()
		time.Sleep(time.Hour) // virtual
		if store.extended() != n {
			t.Errorf("its lease was extended %d times after that", store.extended()-n)
		}
	})
}

// What a publisher has left to go on ends with its step.
func TestGuard_ContextOfAPublisherEndsWithItsStep(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var kept context.Context
		c := call("m1")
		c.Publish = func(ctx context.Context, _ []dedupstore.Produced) error { kept = ctx; return ctx.Err() }
		_, err := newGuard(t, newStore(t), oncemill.Policy{}).Run(t.Context(), c, (&counter{then: producing("o1")}).run)
		if err != nil || kept.Err() == nil {
			t.Errorf("%v; the context has ended with %v", err, kept.Err())
		}
	})
}

// A publish step that was waited for, and whose lease cannot be renewed, is left to others.
func TestGuard_PublishStepThatCannotBeRenewedIsLeft(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		finish := dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{
			Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{{ID: "out", Topic: "t"}},
		}}
		if err := dedupstore.SettleOne(t.Context(), store, abandonedClaim(t, store, "m1"), finish); err != nil {
			t.Fatal(err)
		}
		store.extend = func(func() error) error { return errDown }
		var p publisher
		c := call("m1")
		c.Publish, c.MaxWait = p.publish, time.Minute
		_, err := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second}).Run(t.Context(), c, (&counter{}).run)
		answertest.Want(t, err, oncemill.StatusStoreDown)
		p.want(t)
		synctest.Wait() // for what is under way
		n := store.extended()
		time.Sleep(time.Hour) // virtual
		if store.extended() != n {
			t.Errorf("its lease was to be extended %d times after that", store.extended()-n)
		}
	})
}

// A renewal that is refused for another reason takes no lease away: outputs that no record holds are published under it.
func TestGuard_PublishesUnderALeaseThatHoldsThoughItIsNotRenewed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.extend = func(func() error) error { return &dedupstore.RecordError{Key: key("m1").String(), Problem: "odd"} }
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second, MaxProducedBytes: 1})
		var p publisher
		c := call("m1")
		c.Publish = p.publish
		if _, err := g.Run(t.Context(), c, func(ctx context.Context) (dedupstore.Outcome, error) {
			time.Sleep(11 * time.Second) // virtual
			return producing("o1")(ctx, 1)
		}); err != nil {
			t.Fatal(err)
		}
		p.want(t, "o1")
	})
}
