package oncemill_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// A firstInbox makes first runs without a claim, as long as no time passes in them: it makes their record at the end.
type firstInbox struct {
	*inboxRig
	firsts  atomic.Int64
	fails   error // of the next commits of first runs
	refuses bool  // first runs, as before it knows its server
}

func newFirstInbox(t testing.TB) *firstInbox { return &firstInbox{inboxRig: newInbox(t)} }

// TakesFirst implements [dedupstore.Transactor].
func (i *firstInbox) TakesFirst() bool { return !i.refuses }

// InTx implements [dedupstore.Transactor].
func (i *firstInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	answers := make([]dedupstore.Answer, len(runs))
	var part []dedupstore.TxRun
	var made []dedupstore.Request
	if err := dedupstore.ValidateRuns(runs); err != nil {
		return nil, err
	}
	for n, run := range runs {
		if run.First == nil {
			part = append(part, run)
			continue
		}
		i.firsts.Add(1)
		r := *run.First
		records, err := i.records.Store.(dedupstore.Inspector).Look(ctx, []dedupstore.Key{r.Key})
		if err == nil && records[0].State == dedupstore.Absent {
			made = append(made, r)
			part = append(part, dedupstore.TxRun{Claim: dedupstore.Claim{
				Key: r.Key, Owner: r.Owner, Fence: uint64(time.Now().UnixMicro()), Attempt: 1, Lease: r.Lease,
				Retention: r.Retention, Holder: r.Holder,
			}})
			continue
		}
		if answers[n], err = dedupstore.ClaimOne(ctx, i, r); err != nil {
			return nil, err
		}
	}
	if len(part) == 0 {
		return answers, nil
	}
	_, err := i.inboxRig.InTx(ctx, part,
		func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			settlements, err := work(ctx, claims)
			if err == nil && len(made) > 0 {
				err = i.fails
			}
			for _, r := range made {
				if err == nil {
					_, err = dedupstore.ClaimOne(ctx, i, r)
				}
			}
			return settlements, err
		})
	return answers, err
}

// An inbox may learn from its server that it takes first runs.
func TestGuard_AsksTheInboxForEachFirstCall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		for want, refuses := range []bool{true, false} {
			inbox.refuses = refuses
			if _, err := g.Run(t.Context(), firstly(fmt.Sprint(want)), (&counter{}).run); err != nil {
				t.Fatal(err)
			}
			if n := int(inbox.firsts.Load()); n != want {
				t.Errorf("the inbox got %d first runs, want %d", n, want)
			}
		}
	})
}

// A batch of first calls is one transaction. What is known is left out; when one call fails all is rolled back, and each
// is attempted by itself.
func TestStartBatch_OneTransactionForAllFirstCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		if _, err := newGuard(t, inbox, oncemill.Policy{}).Run(t.Context(), firstly("b"), (&counter{}).run); err != nil {
			t.Fatal(err)
		}
		batch := func(fn oncemill.BatchFunc, ids ...string) (ran [][]int, ends []oncemill.Result) {
			var seen shapes
			var calls []oncemill.Call
			for _, id := range ids {
				calls = append(calls, firstly(id))
			}
			g := newGuard(t, inbox, oncemill.Policy{}) // one that has not met duplicates
			ends = batchOf(t, g, func(ctx context.Context, calls []int) []error {
				if n := seen.note(calls); n > 1 {
					return nil
				}
				return fn(ctx, calls)
			}, calls...)
			return seen.ran, ends
		}
		for name, fails := range map[string]oncemill.BatchFunc{
			"an error for one":  func(context.Context, []int) []error { return []error{nil, errRefused} },
			"one error for all": func(context.Context, []int) []error { return []error{errRefused} },
			"a panic":           func(context.Context, []int) []error { panic("no") },
		} {
			ran, ends := batch(fails, name+" a", "b", name+" c")
			if len(ran) != 3 || !ends[1].Duplicate || ends[0].Attempt != 1 || ends[2].Attempt != 1 {
				t.Errorf("%s: ran as %v, ended with %+v; want together, then each alone", name, ran, ends)
			}
		}
		ran, ends := batch(func(ctx context.Context, calls []int) []error {
			if runs := oncemill.RunsFromContext(ctx); len(runs) != 2 || runs[1].Key.ID != "c" {
				t.Errorf("runs %+v", runs)
			}
			return nil
		}, "a", "b", "c")
		if len(ran) != 1 || !slices.Equal(ran[0], []int{0, 2}) || !ends[1].Duplicate || ends[2].Fence == 0 {
			t.Errorf("ran as %v, ended with %+v; want two together, and the known one answered", ran, ends)
		}
	})
}

// firstly is a call that is counted as the first.
func firstly(id string) oncemill.Call {
	c := call(id)
	c.First = true
	return c
}

func TestFirst_RunNeedsNoClaim(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		h := inbox.charging(t, func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
			if n := inbox.records.claimed(); n != 0 {
				t.Errorf("%d claims before the handler, want none", n)
			}
			if run := oncemill.FromContext(ctx); run.Attempt != 1 || run.Fence == 0 {
				t.Errorf("run %+v", run)
			}
			return dedupstore.Outcome{Result: []byte("receipt")}, nil
		})
		ahead := claimed(t, g, firstly("m1"))
		if inbox.records.claimed() != 0 {
			t.Error("a first call was claimed")
		}
		res, err := begun(t, ahead, h)
		if err != nil || res.Duplicate || res.Attempt != 1 || res.Fence == 0 || string(res.Outcome.Result) != "receipt" {
			t.Fatalf("%+v, %v", res, err)
		}
		dup, err := g.Run(t.Context(), firstly("m1"), h.run)
		if err != nil || !dup.Duplicate || dup.Fence != res.Fence || string(dup.Outcome.Result) != "receipt" {
			t.Errorf("duplicate: %+v, %v", dup, err)
		}
		h.want(t, 1)
		inbox.effects(t, 1)
	})
}

func TestFirst_FailureIsSettledUnderAClaim(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			err  error
			want string
		}{
			"error":     {errRefused, "retry"},
			"permanent": {oncemill.Permanent(errRefused), "failed"},
			"conflict":  {&dedupstore.ConflictError{Err: errRefused}, "uncounted"},
			"no commit": {nil, "retry"},
		} {
			inbox := newFirstInbox(t)
			g := newGuard(t, inbox, oncemill.Policy{})
			if c.err == nil {
				inbox.fails = errRefused
			}
			first := firstly("m1")
			deadLetters := 0
			first.DeadLetter = func(o dedupstore.Outcome, attempt int, fence uint64) []dedupstore.Produced {
				deadLetters++
				return []dedupstore.Produced{{ID: "letter", Topic: "dead", Payload: []byte(o.Reason)}}
			}
			first.Publish = func(context.Context, []dedupstore.Produced) error { return nil }
			res, err := g.Run(t.Context(), first, inbox.charging(t, failing(c.err)).run)
			retry, retried := answertest.Is(err, oncemill.StatusRetry)
			switch c.want {
			case "failed":
				if err != nil || res.Outcome.Kind != dedupstore.Failed || res.Attempt != 1 || deadLetters != 1 {
					t.Errorf("%s: %+v, %v, %d letters", name, res, err, deadLetters)
				}
			default:
				if !retried || retry.Attempt != 1 || retry.Uncounted != (c.want == "uncounted") {
					t.Errorf("%s: %v, want a retry of attempt 1", name, err)
				}
			}
			inbox.effects(t, 0)
			if inbox.records.claimed() != 1 {
				t.Errorf("%s: %d claims, want one, for the settlement", name, inbox.records.claimed())
			}
			if c.want == "retry" {
				time.Sleep(retry.Wait)
				res, err := g.Run(t.Context(), call("m1"), inbox.charging(t, nil).run)
				if err != nil || res.Attempt != 2 {
					t.Errorf("%s: then %+v, %v, want attempt 2", name, res, err)
				}
			}
		}
	})
}

// TestFirst_FailureIsRecordedWhenItsDeliveryHasEnded: a deadline, a client that has gone, or a drain.
func TestFirst_FailureIsRecordedWhenItsDeliveryHasEnded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			err     error
			expired bool // the deadline, else the delivery is cancelled
			want    string
		}{
			"permanent, cancelled": {oncemill.Permanent(errRefused), false, "failed"},
			"permanent, deadline":  {oncemill.Permanent(errRefused), true, "failed"},
			"error, cancelled":     {errRefused, false, "uncounted"},
			"error, deadline":      {errRefused, true, "counted"},
		} {
			inbox := newFirstInbox(t)
			g := newGuard(t, inbox, oncemill.Policy{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			res, err := g.Run(ctx, firstly("m1"), inbox.charging(t, func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
				if !c.expired {
					cancel()
				}
				<-ctx.Done()
				return dedupstore.Outcome{}, c.err
			}).run)
			retry, retried := answertest.Is(err, oncemill.StatusRetry)
			switch {
			case c.want == "failed" && (err != nil || res.Outcome.Kind != dedupstore.Failed):
				t.Errorf("%s: %+v, %v", name, res, err)
			case c.want != "failed" && (!retried || retry.Uncounted != (c.want == "uncounted")):
				t.Errorf("%s: %v, want a retry that is %s", name, err, c.want)
			case retried:
				time.Sleep(retry.Wait)
			}
			again, err := g.Run(t.Context(), call("m1"), inbox.charging(t, nil).run)
			if c.want == "failed" {
				if err != nil || !again.Duplicate || again.Outcome.Kind != dedupstore.Failed {
					t.Errorf("%s: then %+v, %v, want the failure", name, again, err)
				}
				inbox.effects(t, 0)
				continue
			}
			if want := map[string]int{"counted": 2, "uncounted": 1}[c.want]; err != nil || again.Attempt != want {
				t.Errorf("%s: then %+v, %v, want attempt %d", name, again, err, want)
			}
		}
	})
}

func TestFirst_LastAttemptFails(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxAttempts: 1})
		res, err := g.Run(t.Context(), firstly("m1"), inbox.charging(t, failing(errRefused)).run)
		if err != nil || !res.Outcome.Exhausted || res.Attempt != 1 {
			t.Errorf("%+v, %v, want an exhausted failure", res, err)
		}
	})
}

// A twin may come between the rollback and the claim.
func TestFirst_FailureGivesWayToWhatItsTwinHasDecided(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		res, err := g.Run(t.Context(), firstly("m1"), inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			if _, err := g.Run(t.Context(), call("m1"), inbox.charging(t, nil).run); err != nil {
				t.Error(err)
			}
			return dedupstore.Outcome{}, errRefused
		}).run)
		if err != nil || !res.Duplicate || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("%+v, %v, want the outcome of the twin", res, err)
		}
		inbox.effects(t, 1)
	})
}

func TestFirst_OutputsArePublishedUnderItsClaim(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		first := firstly("m1")
		published := 0
		first.Publish = func(_ context.Context, p []dedupstore.Produced) error {
			published += len(p)
			return nil
		}
		res, err := g.Run(t.Context(), first, inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "o1", Topic: "out", Payload: []byte("x")}}}, nil
		}).run)
		if err != nil || published != 1 || res.Attempt != 1 {
			t.Errorf("%+v, %v, %d published", res, err, published)
		}
		dup, err := g.Run(t.Context(), call("m1"), inbox.charging(t, nil).run)
		if err != nil || !dup.Duplicate || published != 1 {
			t.Errorf("duplicate: %+v, %v, %d published", dup, err, published)
		}
	})
}

func TestFirst_UnrecordedFailureIsSaid(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		_, err := g.Run(t.Context(), firstly("m1"), inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			inbox.records.down.Store(true)
			return dedupstore.Outcome{}, errRefused
		}).run)
		if unrecorded := answertest.Want(t, err, oncemill.StatusUnrecorded); unrecorded.Handler == nil {
			t.Errorf("%+v, want the handler's error in it", unrecorded)
		}
		inbox.records.down.Store(false)
		inbox.effects(t, 0)
	})
}

// The answer that a first run gets from its transaction is one: it is not asked for again.
func TestFirst_DuplicateIsAskedForOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		for run := range 2 {
			before := inbox.records.claimed()
			res, err := g.Run(t.Context(), firstly("m1"), inbox.charging(t, nil).run)
			if err != nil || res.Duplicate != (run == 1) || inbox.records.claimed() != before+1 {
				t.Errorf("run %d: %+v, %v after %d claims, want one", run, res, err, inbox.records.claimed()-before)
			}
		}
		inbox.effects(t, 1)
	})
}

// A batch without first calls says nothing about the next first call.
func TestFirst_BatchOfClaimedRunsMakesNobodyWary(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		together(t, g, func(_ context.Context, calls []int) []error { return make([]error, len(calls)) }, "a", "b")
		if _, err := g.Run(t.Context(), firstly("m1"), inbox.charging(t, nil).run); err != nil || inbox.firsts.Load() != 1 {
			t.Errorf("%v, %d runs without a claim", err, inbox.firsts.Load())
		}
		g.Close()
	})
}

func TestFirst_NotWithoutATraceAndNotAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		rerun := firstly("m1")
		rerun.Rerun = 7
		for name, c := range map[string]struct {
			policy oncemill.Policy
			call   oncemill.Call
			want   int
		}{
			"first":         {oncemill.Policy{}, firstly("m1"), 1},
			"counted again": {oncemill.Policy{}, call("m1"), 0},
			"rerun":         {oncemill.Policy{}, rerun, 0},
			"parked":        {oncemill.Irreversible(), firstly("m1"), 0},
		} {
			inbox := newFirstInbox(t)
			g := newGuard(t, inbox, c.policy)
			if _, err := g.Run(t.Context(), c.call, inbox.charging(t, nil).run); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if inbox.firsts.Load() != int64(c.want) {
				t.Errorf("%s: %d runs without a claim, want %d", name, inbox.firsts.Load(), c.want)
			}
			inbox.effects(t, 1)
		}
	})
}

// A stream that is read again is claimed, apart from a call now and then that finds its end.
func TestFirst_DuplicatesAreClaimedTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		run := func(id string) {
			t.Helper()
			if _, err := g.Run(t.Context(), firstly(id), inbox.charging(t, nil).run); err != nil {
				t.Fatal(err)
			}
		}
		run("m1")
		for range 5000 {
			run("m1")
		}
		if n := inbox.firsts.Load() - 1; n < 2 || n > 12 {
			t.Errorf("%d of 5000 duplicates began a transaction, want few", n)
		}
		for n := range 1024 {
			run(fmt.Sprint("n", n))
		}
		before := inbox.firsts.Load()
		run("m2")
		if inbox.firsts.Load() != before+1 {
			t.Error("when the duplicates are over, first calls are claimed")
		}
	})
}

type panickyFirsts struct{ *firstInbox }

func (p panickyFirsts) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if len(runs) > 1 {
		panic("a hook of the driver")
	}
	return p.firstInbox.InTx(ctx, runs, work)
}

func TestStartBatch_AnInboxThatPanicsLeavesEachCallAnAnswer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, panickyFirsts{newFirstInbox(t)}, oncemill.Policy{})
		calls := []oncemill.Call{call("a"), call("b")}
		calls[0].First, calls[1].First = true, true
		var told atomic.Int32
		g.StartBatch(t.Context(), calls, slices.Repeat([]context.Context{t.Context()}, 2),
			func(context.Context, []int) []error { return nil },
			func(i int, res oncemill.Result, err error) {
				told.Add(1)
				if err != nil || res.Status != oncemill.StatusDone {
					t.Errorf("call %d ended with %+v, %v", i, res, err)
				}
			})
		g.Close()
		if told.Load() != 2 {
			t.Errorf("told of %d of 2 calls", told.Load())
		}
	})
}

// A batch's transaction may be granted a known key, and fail before it tells so. The lease began with it all the same.
func TestStartBatch_LeaseOfAKeyThatAFailedTransactionWasGrantedBeginsWithIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		const lease = 6 * time.Second
		policy := oncemill.Policy{Lease: lease}
		fails := func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, errRefused }
		_, err := newGuard(t, inbox, policy).Run(t.Context(), firstly("known"), fails)
		answertest.Want(t, err, oncemill.StatusRetry)
		time.Sleep(time.Minute) // its retry is due
		ran := false
		batchOf(t, newGuard(t, inbox, policy), func(_ context.Context, calls []int) []error {
			if calls[0] == 0 {
				time.Sleep(lease - time.Second)
				return []error{errRefused}
			}
			ran = true
			time.Sleep(2 * time.Second) // the lease of the transaction would have ended
			records, err := inbox.records.Store.(dedupstore.Inspector).Look(t.Context(), []dedupstore.Key{firstly("known").Key})
			if err != nil || !records[0].Until.After(time.Now()) {
				t.Errorf("the handler runs at %v under %+v, %v", time.Now(), records[0], err)
			}
			return nil
		}, firstly("new"), firstly("known"))
		if !ran {
			t.Error("the known key did not run")
		}
	})
}

// An oddInbox begins no transaction of first runs, or returns no answers when all take part.
type oddInbox struct {
	*firstInbox
	fails error
}

func (o oddInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if runs[0].First != nil && o.fails != nil {
		return nil, o.fails
	}
	_, err := o.firstInbox.InTx(ctx, runs, work)
	return nil, err
}

func TestFirst_TransactionThatDoesNotBeginOrHasNoAnswers(t *testing.T) {
	for name, fails := range map[string]error{"does not begin": errDown, "no answers": nil} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				inbox := oddInbox{newFirstInbox(t), fails}
				h := inbox.charging(t, nil)
				res, err := newGuard(t, inbox, oncemill.Policy{}).Run(t.Context(), firstly("m1"), h.run)
				if err != nil || res.Attempt != 1 || res.Outcome.Kind != dedupstore.Succeeded {
					t.Errorf("ended with %+v, %v", res, err)
				}
				h.want(t, 1)
				inbox.effects(t, 1)
			})
		})
	}
}

func TestFirst_EndedDeliveryBeginsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		ctx, end := context.WithCancelCause(t.Context())
		end(errDown)
		_, err := newGuard(t, inbox, oncemill.Policy{}).Run(ctx, firstly("m1"), inbox.charging(t, nil).run)
		wantError(t, err, errDown)
		inbox.effects(t, 0)
	})
}

// A first run that has ended is not at work any more.
func TestFirst_EndedRunIsNotNamed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		log := &lines{level: slog.LevelWarn}
		g := newGuard(t, inbox, oncemill.Policy{Logger: slog.New(log)})
		if _, err := g.Run(t.Context(), firstly("m1"), inbox.charging(t, nil).run); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // virtual
		log.mu.Lock()
		defer log.mu.Unlock()
		if len(log.lines) > 0 {
			t.Errorf("the log says %q", log.lines)
		}
	})
}

// After a batch of duplicates a guard claims first calls for a while, as after one duplicate.
func TestFirst_BatchOfDuplicatesMakesWary(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		run := func(g *oncemill.Guard, calls ...oncemill.Call) {
			batchOf(t, g, func(context.Context, []int) []error { return nil }, calls...)
			g.Close()
		}
		run(newGuard(t, inbox, oncemill.Policy{}), firstly("a"), firstly("b"))
		g := newGuard(t, inbox, oncemill.Policy{})
		asked := inbox.records.claimed()
		run(g, firstly("a"), firstly("b"))
		if n := inbox.records.claimed() - asked; n != 2 {
			t.Errorf("two duplicates were asked for %d times", n)
		}
		before := inbox.firsts.Load()
		if _, err := g.Run(t.Context(), firstly("c"), inbox.charging(t, nil).run); err != nil || inbox.firsts.Load() != before {
			t.Errorf("%v, %d first runs without a claim", err, inbox.firsts.Load()-before)
		}
	})
}

// Calls of a batch come in their order, first ones and others.
func TestFirst_BatchKeepsTheOrderOfItsCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var seen shapes
		g := newGuard(t, newFirstInbox(t), oncemill.Policy{})
		batchOf(t, g, func(_ context.Context, calls []int) []error {
			seen.note(calls)
			return nil
		}, firstly("a"), call("b"), firstly("c"), call("d"))
		if len(seen.ran) != 1 || !slices.Equal(seen.ran[0], []int{0, 1, 2, 3}) {
			t.Errorf("they ran as %v", seen.ran)
		}
		g.Close()
	})
}

// A publish step after a first run has a lease that is renewed.
func TestFirst_PublishStepKeepsItsLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		c := firstly("m1")
		c.Publish = func(context.Context, []dedupstore.Produced) error {
			time.Sleep(time.Minute) // virtual
			if until := inbox.records.look(t, "m1").Until; !time.Now().Before(until) {
				t.Errorf("its lease has ended at %v, and it publishes", until)
			}
			return nil
		}
		_, err := newGuard(t, inbox, oncemill.Policy{Lease: 10 * time.Second}).Run(t.Context(), c,
			(&counter{then: producing("o1")}).run)
		if err != nil || inbox.firsts.Load() != 1 {
			t.Errorf("%v after %d first runs", err, inbox.firsts.Load())
		}
	})
}

// The claim for the settlement of a first run that failed is extended no more when that is stored.
func TestFirst_SettledFailureIsNotExtended(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		h := inbox.charging(t, failing(errRefused))
		_, err := newGuard(t, inbox, oncemill.Policy{}).Run(t.Context(), firstly("m1"), h.run)
		answertest.Want(t, err, oncemill.StatusRetry)
		time.Sleep(time.Hour) // virtual
		if n := inbox.records.extended(); n > 0 {
			t.Errorf("it was extended %d times", n)
		}
	})
}

// A first run may last for longer than a lease. What settles its failure has a whole one all the same.
func TestFirst_FailureAfterALongRunIsSettledUnderAWholeLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		lost := 0
		inbox.records.settle = func(_ dedupstore.Settlement, apply func() error) error {
			if lost++; lost == 1 {
				return errDown
			}
			return apply()
		}
		const lease = 6 * time.Second
		res, err := newGuard(t, inbox, oncemill.Policy{Lease: lease}).Run(t.Context(), firstly("m1"),
			inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
				time.Sleep(lease + time.Second)
				return dedupstore.Outcome{}, oncemill.Permanent(errRefused)
			}).run)
		if err != nil || res.Outcome.Kind != dedupstore.Failed || lost != 2 {
			t.Errorf("%+v, %v after %d settlements, want the failure stored by the second", res, err, lost)
		}
	})
}

// The lease that a long first run leaves behind says nothing of the handler's error: that is counted, and waits.
func TestFirst_FailureAfterALongRunIsAFailedAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		const lease = 6 * time.Second
		inbox.records.extend = func(apply func() error) error {
			time.Sleep(lease / 12) // the heartbeat looks meanwhile
			return apply()
		}
		_, err := newGuard(t, inbox, oncemill.Policy{Lease: lease}).Run(t.Context(), firstly("m1"),
			inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
				time.Sleep(lease + time.Second)
				return dedupstore.Outcome{}, errRefused
			}).run)
		if e := answertest.Want(t, err, oncemill.StatusRetry); e.Uncounted || e.Wait <= 0 {
			t.Errorf("%+v, want an attempt that counts, and a pause", e)
		}
	})
}

// A lateInbox loses a first commit. It looks the key up, which is not there, and grants it.
type lateInbox struct{ *firstInbox }

func (i lateInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if runs[0].First == nil {
		return i.firstInbox.InTx(ctx, runs, work)
	}
	i.firsts.Add(1)
	r := *runs[0].First
	claim := dedupstore.Claim{Key: r.Key, Owner: r.Owner, Fence: 1, Attempt: 1, Lease: r.Lease, Retention: r.Retention}
	if _, err := work(ctx, []dedupstore.Claim{claim}); err != nil {
		return nil, err
	}
	answer, err := dedupstore.ClaimOne(ctx, i, r)
	return []dedupstore.Answer{answer}, err
}

// What a first run that was not committed has left behind, such as a lease that ended, does not stop the next.
func TestFirst_ARunAfterALostCommitHasALeaseOfItsOwn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := lateInbox{newFirstInbox(t)}
		const lease = 6 * time.Second
		inbox.records.extend = func(apply func() error) error {
			time.Sleep(lease / 12) // the heartbeat looks meanwhile
			return apply()
		}
		runs := 0
		res, err := newGuard(t, inbox, oncemill.Policy{Lease: lease}).Run(t.Context(), firstly("m1"),
			func(context.Context) (dedupstore.Outcome, error) {
				if runs++; runs == 1 {
					time.Sleep(lease + time.Second)
				}
				return dedupstore.Outcome{}, nil
			})
		if err != nil || res.Outcome.Kind != dedupstore.Succeeded || runs != 2 {
			t.Errorf("%+v, %v after %d runs, want a success in the second", res, err, runs)
		}
	})
}

// A failure that cannot be claimed for as long as a lease is not recorded, however long its delivery may wait.
func TestFirst_UnrecordedFailureIsSaidInTime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		c := firstly("m1")
		c.MaxWait = time.Hour
		began := time.Now()
		_, err := newGuard(t, inbox, oncemill.Policy{Lease: 30 * time.Second}).Run(t.Context(), c,
			inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
				inbox.records.down.Store(true)
				return dedupstore.Outcome{}, errRefused
			}).run)
		unrecorded := answertest.Want(t, err, oncemill.StatusUnrecorded)
		if took := time.Since(began); unrecorded.Handler == nil || took > time.Minute {
			t.Errorf("%+v after %v", unrecorded, took)
		}
	})
}

// Where the store is down, a first call waits for it as any other does.
func TestFirst_WaitsForAStoreThatIsDown(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		inbox.records.down.Store(true)
		for i := range 100 {
			_, err := g.Run(t.Context(), call(fmt.Sprint(i)), (&counter{}).run)
			answertest.Want(t, err, oncemill.StatusStoreDown)
			time.Sleep(100 * time.Millisecond) // virtual
		}
		firsts := inbox.firsts.Load()
		_, err := g.Run(t.Context(), firstly("m1"), (&counter{}).run)
		answertest.Want(t, err, oncemill.StatusStoreDown)
		if inbox.firsts.Load() != firsts {
			t.Error("it has begun a transaction")
		}
	})
}

// MaxRun bounds a batch of first runs, which is not at work any more when it has ended.
func TestFirst_BatchIsBoundedAndEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newFirstInbox(t)
		log := &lines{level: slog.LevelWarn}
		g := newGuard(t, inbox, oncemill.Policy{MaxRun: 20 * time.Second, Logger: slog.New(log)})
		batchOf(t, g, func(ctx context.Context, calls []int) []error {
			if len(calls) > 1 {
				select {
				case <-ctx.Done():
					wantError(t, context.Cause(ctx), oncemill.ErrMaxRun)
				case <-time.After(time.Minute): // virtual
					t.Error("it goes on after a minute")
				}
			}
			return nil
		}, firstly("a"), firstly("b"))
		batchOf(t, g, func(_ context.Context, calls []int) []error {
			return make([]error, len(calls))
		}, firstly("c"), firstly("d"))
		n := len(log.lines)
		time.Sleep(time.Hour) // virtual
		log.mu.Lock()
		defer log.mu.Unlock()
		if len(log.lines) > n {
			t.Errorf("the log names runs that have ended: %q", log.lines[n:])
		}
		g.Close()
	})
}
