package oncemill_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

func TestGuard_DuplicateGetsTheOutcomeWithoutARun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: []byte("receipt")}, nil
		}}
		first, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || first.Duplicate || first.Attempt != 1 || first.Fence == 0 {
			t.Fatalf("first run: %+v, %v", first, err)
		}
		time.Sleep(time.Hour)
		second, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || !second.Duplicate || string(second.Outcome.Result) != "receipt" || second.Age != time.Hour {
			t.Errorf("duplicate: %+v, %v; want the stored result, an hour old", second, err)
		}
		h.want(t, 1)
	})
}

func TestGuard_FirstAttemptFailsAndTheRedeliveryRuns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: func(_ context.Context, run int) (dedupstore.Outcome, error) {
			if run == 1 {
				return dedupstore.Outcome{}, errors.New("gateway timeout")
			}
			return dedupstore.Outcome{}, nil
		}}
		_, err := g.Run(t.Context(), call("m1"), h.run)
		retry := answertest.Want(t, err, oncemill.StatusRetry)
		if retry.Wait <= 0 || retry.Attempt != 1 {
			t.Errorf("retry: %+v, want a delay after attempt 1", retry)
		}
		_, err = g.Run(t.Context(), call("m1"), h.run)
		if busy := answertest.Want(t, err, oncemill.StatusNotDue); busy.Wait <= 0 || busy.Wait > retry.Wait {
			t.Errorf("before it is due: %+v", busy)
		}
		time.Sleep(retry.Wait)
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Attempt != 2 || res.Duplicate {
			t.Errorf("redelivery: %+v, %v", res, err)
		}
		h.want(t, 2)
	})
}

func TestGuard_RetryAfterIsHeldUntilItIsDue(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: func(_ context.Context, run int) (dedupstore.Outcome, error) {
			if run == 1 {
				return dedupstore.Outcome{}, oncemill.RetryAfter(7*time.Second, errors.New("rate limited"))
			}
			return dedupstore.Outcome{}, nil
		}}
		start := time.Now()
		_, err := g.Run(t.Context(), call("m1"), h.run)
		if retry := answertest.Want(t, err, oncemill.StatusRetry); retry.Wait != 7*time.Second {
			t.Errorf("delay %v, want 7s", retry.Wait)
		}
		c := call("m1")
		c.MaxWait = 10 * time.Second
		if _, err := g.Run(t.Context(), c, h.run); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 7*time.Second || took > 8*time.Second {
			t.Errorf("second run after %v, want 7s and a little", took)
		}
	})
}

// What waits for a busy key does so no longer when nothing is to start any more, and says why it has waited.
func TestGuard_StoppingEndsTheWaitForABusyKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			time.Sleep(10 * time.Second)
			return dedupstore.Outcome{}, nil
		}}
		var first sync.WaitGroup
		first.Go(func() { _, _ = g.Run(t.Context(), call("m1"), h.run) })
		synctest.Wait()
		stopping := make(chan struct{})
		time.AfterFunc(3*time.Second, func() { close(stopping) })
		c := call("m1")
		c.MaxWait, c.Stopping = time.Minute, stopping
		start := time.Now()
		_, err := g.Run(t.Context(), c, h.run)
		answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("after %v, want 3s", took)
		}
		first.Wait()
		h.want(t, 1)
	})
}

func TestGuard_500CopiesAtOnceRunOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			time.Sleep(2 * time.Second)
			return dedupstore.Outcome{Result: []byte("one")}, nil
		}}
		c := call("m1")
		c.MaxWait = time.Minute
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				res, err := g.Run(t.Context(), c, h.run)
				if err != nil || string(res.Outcome.Result) != "one" {
					t.Errorf("copy: %+v, %v", res, err)
				}
			})
		}
		wg.Wait()
		h.want(t, 1)
	})
}

func TestGuard_LostReplyToTheClaimDoesNotRunTwiceNorStrandTheMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		lost := false
		store.claim = func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			a, err := apply()
			if !lost {
				lost = true
				return dedupstore.Answer{}, errors.New("connection reset")
			}
			return a, err
		}
		g := newGuard(t, store, oncemill.Policy{})
		var h counter
		c := call("m1")
		c.MaxWait = time.Second
		res, err := g.Run(t.Context(), c, h.run)
		if err != nil || res.Attempt != 1 {
			t.Fatalf("%+v, %v; want attempt 1", res, err)
		}
		h.want(t, 1)
	})
}

func TestGuard_LateCopyOfAClaimAfterItsSettleTakesNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.RetryAfter(0, errors.New("no"))
		}}
		_, err := g.Run(t.Context(), call("m1"), h.run)
		answertest.Want(t, err, oncemill.StatusRetry)
		a, err := dedupstore.ClaimOne(t.Context(), store.Store, store.claims[0])
		if err != nil || a.Status != dedupstore.Busy {
			t.Fatalf("late copy: %+v, %v; want busy", a, err)
		}
		h.then = nil
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Attempt != 2 {
			t.Errorf("%+v, %v; want attempt 2 at once", res, err)
		}
	})
}

func TestGuard_HeartbeatKeepsALongRunsLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{Lease: 10 * time.Second})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			time.Sleep(5 * time.Minute)
			return dedupstore.Outcome{}, nil
		}}
		done := make(chan error)
		go func() {
			_, err := g.Run(t.Context(), call("m1"), h.run)
			done <- err
		}()
		for range 25 {
			time.Sleep(11 * time.Second)
			_, err := g.Run(t.Context(), call("m1"), h.run)
			answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		h.want(t, 1)
	})
}

func TestGuard_ZombieIsCancelledAndItsOutcomeRefused(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		var partitioned atomic.Bool
		partitioned.Store(true)
		store.extend = func(apply func() error) error {
			if partitioned.Load() {
				return errDown
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{})
		finish := make(chan struct{})
		cause := make(chan error, 1)
		zombie := make(chan error, 1)
		go func() {
			_, err := g.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
				<-ctx.Done()
				cause <- context.Cause(ctx)
				<-finish // it ignores the cancellation for a while
				return dedupstore.Outcome{Result: []byte("zombie")}, nil
			})
			zombie <- err
		}()
		start := time.Now()
		if err := <-cause; !errors.Is(err, oncemill.ErrClaimLost) {
			t.Errorf("cause of the zombie's context: %v, want ErrClaimLost", err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("cancelled after %v, want before the lease of 30s ended", took)
		}
		time.Sleep(30 * time.Second)
		partitioned.Store(false)
		res, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			close(finish)
			if err := <-zombie; !errors.Is(err, oncemill.ErrClaimLost) {
				t.Errorf("zombie's run: %v, want ErrClaimLost", err)
			}
			return dedupstore.Outcome{Result: []byte("owner")}, nil
		})
		if err != nil || res.Attempt != 2 {
			t.Fatalf("new owner: %+v, %v", res, err)
		}
		dup, err := g.Run(t.Context(), call("m1"), nil)
		if err != nil || string(dup.Outcome.Result) != "owner" {
			t.Errorf("outcome %q, %v; want the new owner's", dup.Outcome.Result, err)
		}
	})
}

func TestGuard_OwnerLearnsOfATakeoverAtItsNextHeartbeat(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.extend = func(func() error) error { return dedupstore.ErrClaimLost }
		g := newGuard(t, store, oncemill.Policy{})
		_, err := g.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
			<-ctx.Done()
			return dedupstore.Outcome{}, context.Cause(ctx)
		})
		if !errors.Is(err, oncemill.ErrClaimLost) {
			t.Errorf("%v, want ErrClaimLost", err)
		}
		if len(store.settled) != 0 {
			t.Errorf("a zombie that knew it settled: %v", store.settled)
		}
	})
}

func TestGuard_ExpiryWithoutTakeoverDoesNotRevoke(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.extend = func(func() error) error { return errDown }
		g := newGuard(t, store, oncemill.Policy{})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			time.Sleep(2 * time.Minute) // ignores its context
			return dedupstore.Outcome{}, nil
		}}
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("%+v, %v; want the outcome recorded, as nobody took over", res, err)
		}
	})
}

func TestGuard_ShutdownWhileAHandlerRunsCountsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 1})
		ctx, shutdown := context.WithCancel(t.Context())
		_, err := g.Run(ctx, call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
			shutdown()
			<-ctx.Done()
			return dedupstore.Outcome{}, fmt.Errorf("query: %w", ctx.Err())
		})
		if retry := answertest.Want(t, err, oncemill.StatusRetry); !retry.Uncounted || retry.Wait != 0 {
			t.Errorf("%+v, want an uncounted attempt, due at once", retry)
		}
		res, err := g.Run(t.Context(), call("m1"), (&counter{}).run)
		if err != nil || res.Attempt != 1 {
			t.Errorf("after the restart: %+v, %v; want attempt 1", res, err)
		}
	})
}

// TestGuard_RunThatWasStoppedBeforeItBeganIsNotParked: the store was marking it as started when the process was told to stop.
func TestGuard_RunThatWasStoppedBeforeItBeganIsNotParked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Irreversible())
		back := time.Now().Add(3 * time.Second)
		ctx, shutdown := context.WithCancel(t.Context())
		store.extend = func(apply func() error) error {
			_ = apply() // and the reply is lost
			shutdown()
			return errDown
		}
		store.settle = func(_ dedupstore.Settlement, apply func() error) error {
			if time.Now().Before(back) {
				return errDown
			}
			return apply()
		}
		h := &counter{}
		if _, err := g.Run(ctx, call("m1"), h.run); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the end of the context", err)
		}
		store.extend = nil
		time.Sleep(g.Policy().Lease)
		if res, err := g.Run(t.Context(), call("m1"), h.run); err != nil || res.Outcome.Kind != dedupstore.Succeeded || res.Attempt != 1 {
			t.Errorf("%+v, %v", res, err)
		}
		h.want(t, 1)
	})
}

func TestGuard_BackoffNeverShrinks(t *testing.T) {
	virtual(t, func(t *testing.T) {
		least := time.Duration(1<<33 + 1) // 2^31 times that overflows to 2.1 s
		g := newGuard(t, newStore(t), oncemill.Policy{Backoff: oncemill.Backoff{Min: least, Max: time.Minute}})
		for i := range 70 {
			_, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{}, oncemill.Uncounted(errDown)
			})
			retry := answertest.Want(t, err, oncemill.StatusRetry)
			if longest := min(time.Minute, least<<min(i, 3)); retry.Wait > longest || retry.Wait < longest*4/5-1 {
				t.Fatalf("the delay after outage %d is %v, want at most %v and little less", i, retry.Wait, longest)
			}
			time.Sleep(retry.Wait)
		}
	})
}

func TestGuard_OutageOfOthersUsesUpNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 2, Backoff: oncemill.Backoff{Min: time.Second, Max: time.Minute}})
		outage := func(err error) error {
			_, err = g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, err })
			return err
		}
		for i := range 50 {
			retry := answertest.Want(t, outage(fmt.Errorf("a: %w", oncemill.Uncounted(errDown))), oncemill.StatusRetry)
			longest := min(time.Minute, time.Second<<min(i, 10))
			if !retry.Uncounted || retry.Attempt != 1 || retry.Wait > longest || retry.Wait < longest*4/5-1 ||
				!errors.Is(retry, errDown) {
				t.Fatalf("outage %d: %+v, want attempt 1 again, after at most %v", i, retry, longest)
			}
			time.Sleep(retry.Wait)
		}
		for _, err := range []error{
			oncemill.RetryAfter(time.Hour, oncemill.Uncounted(errDown)), oncemill.Uncounted(oncemill.RetryAfter(time.Hour, errDown)),
		} {
			retry := answertest.Want(t, outage(err), oncemill.StatusRetry)
			if !retry.Uncounted || retry.Attempt != 1 || retry.Wait != time.Hour {
				t.Errorf("%+v, want attempt 1 again after an hour", retry)
			}
			time.Sleep(retry.Wait)
		}
		if retry := answertest.Want(t, outage(errDown), oncemill.StatusRetry); retry.Uncounted || retry.Attempt != 1 {
			t.Errorf("%+v, want a first attempt that counts", retry)
		}
		time.Sleep(time.Minute)
		if res, err := g.Run(t.Context(), call("m1"), (&counter{}).run); err != nil || res.Attempt != 2 {
			t.Errorf("when it is back: %+v, %v; want attempt 2", res, err)
		}
	})
	if err := oncemill.Uncounted(nil); err != nil {
		t.Errorf("Uncounted(nil) is %v", err)
	}
}

func TestGuard_OutageOfOthersNeedsProofWhereThePolicyParks(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Irreversible())
		run := func(id string, err error) (oncemill.Result, error) {
			return g.Run(t.Context(), call(id), func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, err })
		}
		res, err := run("m1", oncemill.RetryAfter(time.Second, oncemill.Uncounted(errDown)))
		if err != nil || res.Outcome.Kind != dedupstore.Unknown {
			t.Errorf("%+v, %v; want an unknown outcome", res, err)
		}
		_, err = run("m2", oncemill.NoEffect(oncemill.Uncounted(errDown)))
		if retry := answertest.Want(t, err, oncemill.StatusRetry); !retry.Uncounted {
			t.Errorf("%+v, want an uncounted attempt", retry)
		}
	})
}

func TestGuard_SuccessDuringShutdownIsRecorded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		ctx, shutdown := context.WithCancel(t.Context())
		if _, err := g.Run(ctx, call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			shutdown()
			return dedupstore.Outcome{}, nil
		}); err != nil {
			t.Fatal(err)
		}
		if res, err := g.Run(t.Context(), call("m1"), nil); err != nil || !res.Duplicate {
			t.Errorf("%+v, %v; want a duplicate", res, err)
		}
	})
}

func TestGuard_PanicCountsAsAFailedAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		_, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) { panic("boom") })
		if err != nil {
			t.Fatal(err)
		}
		if said := log.String(); strings.Count(said, "handler panicked: boom") != 1 || !strings.Contains(said, "guard_test.go") || !strings.Contains(said, "id=m1") {
			t.Errorf("the log does not say where: %s", said)
		}
		res, err := g.Run(t.Context(), call("m1"), nil)
		if err != nil || !res.Outcome.Exhausted || res.Outcome.Reason != "handler panicked: boom" {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestGuard_StoredFailureIsReplayedAndRunsAgainOnceOnRequest(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.Permanent(errors.New("card stolen"))
		}}
		var failure *oncemill.Error
		for range 3 {
			res, err := g.Run(t.Context(), call("m1"), h.run)
			if err != nil {
				t.Fatal(err)
			}
			failure = answertest.Want(t, res.Failure(), oncemill.StatusDone)
			if failure.Outcome.Reason != "card stolen" || failure.Outcome.Exhausted {
				t.Errorf("%+v", failure)
			}
		}
		h.want(t, 1)

		rerun := call("m1")
		rerun.Rerun = failure.Fence
		for range 3 {
			if _, err := g.Run(t.Context(), rerun, h.run); err != nil {
				t.Fatal(err)
			}
		}
		h.want(t, 2)
	})
}

func TestGuard_OtherContentIsRefused(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		a, b := call("m1"), call("m1")
		a.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: "aaa"}
		b.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: "bbb"}
		var h counter
		if _, err := newGuard(t, store, oncemill.Policy{}).Run(t.Context(), a, h.run); err != nil {
			t.Fatal(err)
		}
		_, err := newGuard(t, store, oncemill.Policy{}).Run(t.Context(), b, h.run)
		answertest.Want(t, err, oncemill.StatusMismatch)
		res, err := newGuard(t, store, oncemill.Policy{Mismatch: oncemill.MismatchIgnore}).Run(t.Context(), b, h.run)
		if err != nil || !res.Duplicate {
			t.Errorf("with MismatchIgnore: %+v, %v; want a duplicate", res, err)
		}
		h.want(t, 1)
	})
}

func TestGuard_ResultsOverTheLimitAreCutWithAMarker(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		for _, size := range []int{0, 64 << 10, 64<<10 + 1, 10 << 20} {
			c := call(fmt.Sprint("result of ", size))
			want := bytes.Repeat([]byte{0xff, 0}, size/2+1)[:size]
			first, err := g.Run(t.Context(), c, func(context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{Result: want}, nil
			})
			if err != nil || !bytes.Equal(first.Outcome.Result, want) {
				t.Fatalf("%d bytes, first: %v", size, err)
			}
			dup, err := g.Run(t.Context(), c, nil)
			stored := min(size, 64<<10)
			if err != nil || !bytes.Equal(dup.Outcome.Result, want[:stored]) || dup.Outcome.Truncated != (size > 64<<10) {
				t.Errorf("%d bytes, duplicate: %d bytes, truncated %v, %v", size, len(dup.Outcome.Result), dup.Outcome.Truncated, err)
			}
		}
	})
}

func TestGuard_WindowIsCountedFromTheEnd(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{Window: time.Hour})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			time.Sleep(50 * time.Minute)
			return dedupstore.Outcome{}, nil
		}}
		for _, wait := range []time.Duration{0, 59 * time.Minute, time.Minute} {
			time.Sleep(wait)
			if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
				t.Fatal(err)
			}
		}
		h.want(t, 2)
	})
}

func TestGuard_HoldEndsWithTheCallersContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		abandonedClaim(t, store, "m1")
		g := newGuard(t, store, oncemill.Policy{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			c := call("m1")
			c.MaxWait = time.Minute
			_, err := g.Run(ctx, c, nil)
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
	})
}

func TestGuard_TwoHandlersOfOneGroupBothRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		var h counter
		for _, handler := range []string{"charge", "mail"} {
			c := call("m1")
			c.Key.Handler = handler
			if _, err := g.Run(t.Context(), c, h.run); err != nil {
				t.Fatal(err)
			}
		}
		h.want(t, 2)
	})
}

func TestGuard_RefusesBadCalls(t *testing.T) {
	t.Parallel()
	g := newGuard(t, newStore(t), oncemill.Policy{})
	for name, change := range map[string]func(*oncemill.Call){
		"Key.ID":           func(c *oncemill.Call) { c.Key.ID = "" },
		"Key.Group":        func(c *oncemill.Call) { c.Key.Group = "" },
		"Key.Tenant":       func(c *oncemill.Call) { c.Key.Tenant = "\x00" },
		"Call.Key.Handler": func(c *oncemill.Call) { c.Key.Handler = "~charge" },
		"Call.MaxWait":     func(c *oncemill.Call) { c.MaxWait = -1 },
	} {
		c := call("m1")
		change(&c)
		_, err := g.Run(t.Context(), c, nil)
		if e := as[*dedupstore.InvalidError](t, err); e.Field != name {
			t.Errorf("%v, want it to name %s", err, name)
		}
	}
}

func TestGuard_RetryAfterMayBeAnyTime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		year := 365 * 24 * time.Hour
		for after, want := range map[time.Duration]time.Duration{math.MaxInt64: year, 150 * year: year, math.MinInt64: 0} {
			g := newGuard(t, newStore(t), oncemill.Policy{})
			_, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{}, oncemill.RetryAfter(after, errors.New("not yet"))
			})
			if e := answertest.Want(t, err, oncemill.StatusRetry); e.Wait != want {
				t.Errorf("after %v: retry in %v, want %v", after, e.Wait, want)
			}
		}
	})
}

func TestGuard_WhoClaimsDecidesWhatBecomesOfARunThatDied(t *testing.T) {
	for name, tc := range map[string]struct {
		died, next oncemill.Policy
		parked     bool
	}{
		"irreversible before and after":     {oncemill.Irreversible(), oncemill.Irreversible(), true},
		"irreversible, then another":        {oncemill.Irreversible(), oncemill.HighValue(), false},
		"another, then irreversible, early": {oncemill.HighValue(), oncemill.Irreversible(), false},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				_, err := newGuard(t, store, tc.died).Run(t.Context(), call("1"), func(context.Context) (dedupstore.Outcome, error) {
					store.down.Store(true) // for all that the store hears of it, it dies here
					return dedupstore.Outcome{}, nil
				})
				if err == nil {
					t.Fatal("it has not died")
				}
				store.down.Store(false)
				time.Sleep(time.Minute) // of the bubble: more than the lease
				ran := false
				res, err := newGuard(t, store, tc.next).Run(t.Context(), call("1"), func(context.Context) (dedupstore.Outcome, error) {
					ran = true
					return dedupstore.Outcome{}, nil
				})
				if err != nil || ran == tc.parked || (res.Outcome.Kind == dedupstore.Unknown) != tc.parked {
					t.Errorf("ran: %t, %+v, %v; parked: %t wanted", ran, res, err, tc.parked)
				}
			})
		})
	}
}

// A guard in the handler of another one: what ends its context with ErrClaimLost is the other one's claim.
func TestGuard_ClaimOfAnotherThatIsLostBeforeTheHandlerStartsGivesThisOneBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, policy := range map[string]oncemill.Policy{"retake": {}, "park": oncemill.Irreversible()} {
			store := newStore(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			store.claim = func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
				a, err := apply()
				cancel(oncemill.ErrClaimLost)
				return a, err
			}
			g := newGuard(t, store, policy)
			h := counter{}
			if _, err := g.Run(ctx, call("m1"), h.run); !errors.Is(err, oncemill.ErrClaimLost) {
				t.Errorf("%s: %v", name, err)
			}
			h.want(t, 0)
			store.claim = nil
			res, err := g.Run(t.Context(), call("m1"), h.run)
			if err != nil || res.Attempt != 1 {
				t.Errorf("%s: then attempt %d, outcome %+v, %v; want attempt 1 at once", name, res.Attempt, res.Outcome, err)
			}
		}
	})
}

// A panic in a hook of the store's client must not keep an outcome from being stored: its effect would be made twice.
func TestGuard_OutcomeIsStoredThoughTheStorePanicsOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, outcome := range map[string]dedupstore.Outcome{"nothing": {}, "output": {Produced: []dedupstore.Produced{{ID: "1"}}}} {
			store := newStore(t)
			panics := 0
			store.settle = func(_ dedupstore.Settlement, apply func() error) error {
				if panics++; panics%3 != 0 {
					panic("a hook of the client")
				}
				return apply()
			}
			g := newGuard(t, store, oncemill.Policy{})
			h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) { return outcome, nil }}
			c := call("m1")
			c.Publish = (&publisher{}).publish
			if _, err := g.Run(t.Context(), c, h.run); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if res, err := g.Run(t.Context(), c, h.run); err != nil || !res.Duplicate {
				t.Errorf("%s: then %+v, %v", name, res, err)
			}
			h.want(t, 1)
		}
	})
}

// The record of a failure has the beginning of a result that is too long, as that of a success has.
func TestGuard_LongResultOfAFailureIsCut(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{MaxResultBytes: 4})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: []byte("declined")}, oncemill.Permanent(errors.New("no"))
		}}
		for _, want := range []string{"declined", "decl"} {
			res, err := g.Run(t.Context(), call("m1"), h.run)
			if got := string(res.Outcome.Result); err != nil || got != want || res.Outcome.Truncated != (want == "decl") {
				t.Errorf("ended with result %q, truncated %v, %v; want %q", got, res.Outcome.Truncated, err, want)
			}
		}
	})
}

// The history says how long an attempt took that failed.
func TestGuard_HistorySaysHowLongAFailedAttemptTook(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		h := counter{then: func(_ context.Context, run int) (dedupstore.Outcome, error) {
			time.Sleep(time.Minute) // virtual
			return dedupstore.Outcome{}, map[int]error{1: errors.New("no")}[run]
		}}
		answertest.Want(t, second(g.Run(t.Context(), call("m1"), h.run)), oncemill.StatusRetry)
		time.Sleep(time.Hour) // virtual
		if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
			t.Fatal(err)
		}
		past := store.look(t, "m1").History
		if len(past) != 1 || past[0].Ended.Sub(past[0].Claimed) != time.Minute {
			t.Errorf("the history is %+v, want an attempt of a minute", past)
		}
	})
}

func second(_ oncemill.Result, err error) error { return err }

// Most holders are quick: a call that waits for one notices soon that it has finished.
func TestGuard_AWaitForAQuickHolderIsShort(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		holder := abandonedClaim(t, store, "m1")
		began := time.Now()
		time.AfterFunc(60*time.Millisecond, func() {
			finish := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour}
			if err := dedupstore.SettleOne(t.Context(), store, holder, finish); err != nil {
				t.Error(err)
			}
		})
		c := call("m1")
		c.MaxWait = time.Minute
		res, err := g.Run(t.Context(), c, (&counter{}).run)
		if took := time.Since(began); err != nil || !res.Duplicate || took > 250*time.Millisecond {
			t.Errorf("ended with %+v, %v after %v", res, err, took)
		}
	})
}

// A store whose answer has no meaning is one that does not answer.
func TestGuard_AnswerWithoutMeaningRunsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.claim = func(func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			return dedupstore.Answer{Status: "maybe"}, nil
		}
		var h counter
		_, err := newGuard(t, store, oncemill.Policy{}).Run(t.Context(), call("m1"), h.run)
		answertest.Want(t, err, oncemill.StatusStoreDown)
		h.want(t, 0)
	})
}

// A call that waits for a retry asks again when that is due, and is a quarter of its last pause late at most.
func TestGuard_AWaitForARetryEndsWhenItIsDue(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		for delay := 600 * time.Millisecond; delay < 3*time.Second; delay += 110 * time.Millisecond {
			id := delay.String()
			err := dedupstore.SettleOne(t.Context(), store, abandonedClaim(t, store, id), dedupstore.Release{Delay: delay})
			if err != nil {
				t.Fatal(err)
			}
			due := time.Now().Add(delay)
			c := call(id)
			c.MaxWait = time.Minute
			if _, err := g.Run(t.Context(), c, (&counter{}).run); err != nil {
				t.Fatal(err)
			}
			if late := time.Since(due); late < 0 || late > 160*time.Millisecond {
				t.Errorf("what was due in %v ran %v late", delay, late)
			}
		}
	})
}

// A store that cannot say how long a key is busy is not asked all the time.
func TestGuard_AWaitWithoutAnEndAsksNowAndThen(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.claim = func(func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			return dedupstore.Answer{Status: dedupstore.Busy}, nil
		}
		c := call("m1")
		c.MaxWait = 10 * time.Second
		_, err := newGuard(t, store, oncemill.Policy{}).Run(t.Context(), c, (&counter{}).run)
		answertest.Want(t, err, oncemill.StatusBusy)
		if n := store.claimed(); n < 15 || n > 40 {
			t.Errorf("asked %d times in ten seconds", n)
		}
	})
}

// A call that has waited makes room for another, however often it has asked.
func TestWaitLimit_IsOfCallsNotOfQuestions(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		limit := oncemill.NewWaitLimit(1)
		for _, id := range []string{"a", "b", "c"} {
			holder := abandonedClaim(t, store, id)
			time.AfterFunc(3*time.Second, func() {
				finish := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour}
				if err := dedupstore.SettleOne(t.Context(), store, holder, finish); err != nil {
					t.Error(err)
				}
			})
			c := call(id)
			c.MaxWait, c.WaitLimit = time.Minute, limit
			if res, err := g.Run(t.Context(), c, (&counter{}).run); err != nil || !res.Duplicate {
				t.Errorf("%s: %+v, %v", id, res, err)
			}
		}
	})
}

// A handler that ends because its claim is lost has no error of its own.
func TestGuard_LostRunHasTheErrorOfItsHandler(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, own := range []error{nil, errDown} {
			store := newStore(t)
			store.extend = func(func() error) error { return dedupstore.ErrClaimLost }
			_, err := newGuard(t, store, oncemill.Policy{}).Run(t.Context(), call("m1"),
				func(ctx context.Context) (dedupstore.Outcome, error) {
					<-ctx.Done()
					return dedupstore.Outcome{}, cmp.Or(own, context.Cause(ctx))
				})
			if lost := answertest.Want(t, err, oncemill.StatusLost); lost.Handler != own { //nolint:errorlint // the very one
				t.Errorf("the handler's error is %v, want %v", lost.Handler, own)
			}
		}
	})
}

// Calls that began to wait together do not all come back at once.
func TestGuard_WaitsThatBeganTogetherEndApart(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		abandonedClaim(t, store, "m1")
		var mu sync.Mutex
		ends := map[time.Duration]bool{}
		var all sync.WaitGroup
		began := time.Now()
		for range 20 {
			all.Go(func() {
				c := call("m1")
				c.MaxWait = time.Second
				_, err := g.Run(t.Context(), c, (&counter{}).run)
				answertest.Want(t, err, oncemill.StatusBusy)
				mu.Lock()
				defer mu.Unlock()
				ends[time.Since(began)] = true
			})
		}
		all.Wait()
		if len(ends) < 10 {
			t.Errorf("twenty waits ended at %d times", len(ends))
		}
	})
}
