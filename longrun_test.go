package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

func TestPolicy_MaxRunCancelsTheHandlerAndCountsTheAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxRun: 20 * time.Second, MaxAttempts: 2})
		run := func(ctx context.Context) (dedupstore.Outcome, error) {
			began := time.Now()
			<-ctx.Done()
			if took := time.Since(began); took < 20*time.Second || took > 25*time.Second {
				t.Errorf("cancelled after %v, want 20 s and a little", took)
			}
			if !errors.Is(context.Cause(ctx), oncemill.ErrMaxRun) {
				t.Errorf("the cause is %v, want ErrMaxRun", context.Cause(ctx))
			}
			return dedupstore.Outcome{}, ctx.Err()
		}
		_, err := g.Run(t.Context(), call("m1"), run)
		if retry := answertest.Want(t, err, oncemill.StatusRetry); retry.Uncounted ||
			!errors.Is(err, oncemill.ErrMaxRun) {
			t.Errorf("the first run ended with %v, uncounted %t, want an attempt that names ErrMaxRun", err, retry.Uncounted)
		}
		time.Sleep(time.Minute)
		res, err := g.Run(t.Context(), call("m1"), run)
		if err != nil || !res.Outcome.Exhausted || !strings.Contains(res.Outcome.Reason, "Policy.MaxRun") {
			t.Errorf("the last run ended with %+v, %v, want an exhausted outcome that names Policy.MaxRun", res.Outcome, err)
		}
	})
}

// A handler may also overlook the end of its context, and succeed: its effect is there.
func TestPolicy_MaxRunKeepsASuccessThatComesLate(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxRun: time.Second})
		res, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			time.Sleep(time.Hour)
			return dedupstore.Outcome{}, nil
		})
		if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("it ended with %+v, %v, want a success", res.Outcome, err)
		}
	})
}

func TestPolicy_MaxRunIsNoInterruptionOfABatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxRun: time.Second})
		began := time.Now()
		ends := together(t, g, func(ctx context.Context, _ []int) []error {
			<-ctx.Done()
			return []error{nil, ctx.Err()}
		}, "m1", "m2")
		if took := time.Since(began); took > 1200*time.Millisecond {
			t.Errorf("a run of a second at most ended after %v", took)
		}
		if ends[0].Status != oncemill.StatusDone || ends[1].Status != oncemill.StatusRetry || ends[1].Uncounted {
			t.Errorf("ended with %+v; want the second to have used an attempt up", ends)
		}
	})
}

func TestPolicy_MaxRunIsChecked(t *testing.T) {
	t.Parallel()
	_, err := oncemill.NewGuard(newStore(t), oncemill.Policy{MaxRun: 5})
	if err == nil || !strings.Contains(err.Error(), "Policy.MaxRun is 5ns, want at least 100ms, or 0 for no limit") {
		t.Errorf("the error is %v", err)
	}
}

// Forty runs hang, and the log says so: after a minute, and then ever more rarely.
func TestGuard_RunsThatHangAreNamed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		log := &lines{level: slog.LevelWarn}
		g := newGuard(t, newStore(t), oncemill.Policy{Logger: slog.New(log)})
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				_, _ = g.Run(t.Context(), call(fmt.Sprint("m", i)), func(context.Context) (dedupstore.Outcome, error) {
					time.Sleep(2 * time.Hour)
					return dedupstore.Outcome{}, nil
				})
			})
		}
		time.Sleep(59 * time.Second)
		log.mu.Lock()
		if len(log.lines) > 0 {
			t.Errorf("before a minute the log says %q", log.lines)
		}
		log.mu.Unlock()
		time.Sleep(5 * time.Second)
		log.mu.Lock()
		defer log.mu.Unlock()
		if len(log.lines) != 1 {
			t.Fatalf("after a minute the log says %q, want one line", log.lines)
		}
		said := log.attrs[0]
		if said["runs"] != int64(40) || said["handler"] != "charge" || said["id"] == "" ||
			said["at_work"].(time.Duration).Round(10*time.Second) != time.Minute {
			t.Errorf("it says %v, want an ID, the handler, how long and how many", said)
		}
		log.mu.Unlock()
		all.Wait()
		log.mu.Lock()
		if len(log.lines) < 6 || len(log.lines) > 8 {
			t.Errorf("in two hours the log has %d lines, want some 7: %q", len(log.lines), log.attrs)
		}
	})
}

// A first run of an inbox has no claim that could be renewed.
func TestPolicy_MaxRunBoundsFirstRuns(t *testing.T) { boundsRunsOfAnInbox(t, firstly("m1"), 1) }

func TestPolicy_MaxRunBoundsClaimedRunsOfAnInbox(t *testing.T) { boundsRunsOfAnInbox(t, call("m1"), 0) }

func boundsRunsOfAnInbox(t *testing.T, c oncemill.Call, firsts int64) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxRun: 20 * time.Second})
		_, err := g.Run(t.Context(), c, func(ctx context.Context) (dedupstore.Outcome, error) {
			<-ctx.Done()
			return dedupstore.Outcome{}, context.Cause(ctx)
		})
		retry, failed := answertest.Is(err, oncemill.StatusRetry)
		if !failed || retry.Uncounted || !errors.Is(err, oncemill.ErrMaxRun) || inbox.firsts.Load() != firsts {
			t.Errorf("after %d first runs: %v, want an attempt that names ErrMaxRun", inbox.firsts.Load(), err)
		}
	})
}

// A batch waits for its transaction, and then its handler has all of the time.
func TestPolicy_MaxRunCountsNoWaitForTheTransactionOfABatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			waits, works time.Duration
			want         oncemill.Status
			ran          int
		}{
			"a wait": {time.Minute, 10 * time.Second, oncemill.StatusDone, 1},
			"work":   {10 * time.Second, time.Minute, oncemill.StatusRetry, 3}, // together, then each alone
		} {
			var seen shapes
			inbox := &slowInbox{inboxRig: newInbox(t), begins: c.waits}
			g := newGuard(t, inbox, oncemill.Policy{MaxRun: 20 * time.Second})
			ends := together(t, g, func(ctx context.Context, calls []int) []error {
				seen.note(calls)
				select {
				case <-ctx.Done():
					return []error{context.Cause(ctx)}
				case <-time.After(c.works):
					return nil
				}
			}, "m1", "m2")
			if len(seen.ran) != c.ran || ends[0].Status != c.want || ends[1].Status != c.want {
				t.Errorf("%s of a minute: ran as %v, ended with %+v", name, seen.ran, ends)
			}
			g.Close()
		}
	})
}

// A slowInbox takes its time to begin a transaction.
type slowInbox struct {
	*inboxRig
	begins time.Duration
}

func (i *slowInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	time.Sleep(i.begins) // virtual
	return i.inboxRig.InTx(ctx, runs, work)
}

// The wait for a transaction is none of the handler's time.
func TestPolicy_MaxRunCountsNoWaitForATransaction(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			time.Sleep(time.Minute) // virtual
			return do(work)
		}
		g := newGuard(t, inbox, oncemill.Policy{MaxRun: 20 * time.Second})
		h := inbox.charging(t, func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
			time.Sleep(10 * time.Second) // virtual
			return dedupstore.Outcome{}, ctx.Err()
		})
		if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
			t.Error(err)
		}
		inbox.effects(t, 1)
	})
}
