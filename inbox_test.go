package oncemill_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/txctx"
)

// An inboxRig is an inbox in memory whose transactions misbehave on request.
type inboxRig struct {
	*storetest.MemoryInbox
	records *faultyStore
	inTx    func(work txWork, do func(txWork) error) error
}

type txWork = func(context.Context) (dedupstore.Settlement, error)

func newInbox(t testing.TB) *inboxRig {
	t.Helper()
	records := newStore(t)
	return &inboxRig{MemoryInbox: storetest.NewMemoryInbox(records), records: records}
}

func (r *inboxRig) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if r.inTx == nil {
		return r.MemoryInbox.InTx(ctx, runs, work)
	}
	c := runs[0].Claim
	return nil, r.inTx(func(ctx context.Context) (dedupstore.Settlement, error) {
		settlements, err := work(ctx, []dedupstore.Claim{c})
		if err != nil {
			return nil, err
		}
		return settlements[0], nil
	}, func(work txWork) error { return dedupstore.InTxOne(ctx, r.MemoryInbox, c, work) })
}

// effects wants so many committed effects.
func (r *inboxRig) effects(t testing.TB, want int) {
	t.Helper()
	if got := r.All()["charged"]; got != want {
		t.Errorf("%d effects are committed, want %d", got, want)
	}
}

// charging is a handler that writes an effect before it does what it is told.
func (r *inboxRig) charging(t testing.TB, then func(ctx context.Context, run int) (dedupstore.Outcome, error)) *counter {
	return &counter{then: func(ctx context.Context, run int) (dedupstore.Outcome, error) {
		if err := r.Write(ctx, "charged"); err != nil {
			t.Errorf("write in the transaction: %v", err)
		}
		if then == nil {
			return dedupstore.Outcome{Result: []byte("receipt")}, nil
		}
		return then(ctx, run)
	}}
}

func failing(err error) func(context.Context, int) (dedupstore.Outcome, error) {
	return func(context.Context, int) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, err }
}

var errRefused = errors.New("card refused")

func TestInbox_EffectAndOutcomeAreCommittedTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			inbox.effects(t, 0)
			_, err := g.Run(t.Context(), call("m1"), (&counter{}).run)
			answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)
			return dedupstore.Outcome{Result: []byte("receipt")}, nil
		})
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Duplicate || res.Attempt != 1 || res.Fence == 0 || string(res.Outcome.Result) != "receipt" {
			t.Fatalf("%+v, %v", res, err)
		}
		dup, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || !dup.Duplicate || string(dup.Outcome.Result) != "receipt" || dup.Fence != res.Fence {
			t.Errorf("duplicate: %+v, %v", dup, err)
		}
		h.want(t, 1)
		inbox.effects(t, 1)
	})
}

func TestInbox_HandlerFindsItsRunAndItsClaim(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		res, err := g.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
			run := oncemill.FromContext(ctx)
			claim, ok := txctx.From[*dedupstore.Claim](ctx)
			if !ok || claim.Validate() != nil || claim.Key != key("m1") || run.Fence != claim.Fence || run.Attempt != 1 {
				t.Errorf("run %+v, claim %+v", run, claim)
			}
			return dedupstore.Outcome{}, inbox.Write(ctx, "charged")
		})
		if err != nil || res.Fence == 0 {
			t.Errorf("%+v, %v", res, err)
		}
		inbox.effects(t, 1)
	})
}

func TestInbox_HandlersErrorRollsBackAndCountsAnAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		cause := oncemill.RetryAfter(7*time.Second, errRefused)
		h := inbox.charging(t, func(_ context.Context, run int) (dedupstore.Outcome, error) {
			if run == 1 {
				return dedupstore.Outcome{}, cause
			}
			return dedupstore.Outcome{}, nil
		})
		_, err := g.Run(t.Context(), call("m1"), h.run)
		retry := answertest.Want(t, err, oncemill.StatusRetry)
		if retry.Wait != 7*time.Second || retry.Attempt != 1 || retry.Uncounted || !errors.Is(err, errRefused) ||
			retry.Handler != cause { //nolint:errorlint // the handler's error, and not one around it
			t.Errorf("%+v", retry)
		}
		inbox.effects(t, 0)
		time.Sleep(retry.Wait)
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Attempt != 2 {
			t.Errorf("redelivery: %+v, %v", res, err)
		}
		inbox.effects(t, 1)
	})
}

func TestInbox_PermanentFailureIsStoredWithItsResultThoughItsEffectsAreNot(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: []byte("402")}, oncemill.Permanent(errRefused)
		})
		for duplicate := range 2 {
			res, err := g.Run(t.Context(), call("m1"), h.run)
			if err != nil || res.Outcome.Kind != dedupstore.Failed || res.Outcome.Exhausted || string(res.Outcome.Result) != "402" ||
				res.Outcome.Reason != errRefused.Error() || res.Duplicate != (duplicate == 1) {
				t.Errorf("%+v, %v", res, err)
			}
		}
		h.want(t, 1)
		inbox.effects(t, 0)
	})
}

func TestInbox_FailureKeepsNoResultOfAnEarlierTry(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			return do(func(ctx context.Context) (dedupstore.Settlement, error) {
				work(ctx) // in a transaction that the database refused
				return work(ctx)
			})
		}
		g := newGuard(t, inbox, oncemill.Policy{})
		h := &counter{then: func(_ context.Context, run int) (dedupstore.Outcome, error) {
			if run == 1 {
				return dedupstore.Outcome{Result: []byte("of the first"), Produced: []dedupstore.Produced{{ID: "x"}}}, nil
			}
			return dedupstore.Outcome{}, oncemill.Permanent(errRefused)
		}}
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || len(res.Outcome.Result) != 0 || len(res.Outcome.Produced) != 0 || res.Outcome.Kind != dedupstore.Failed {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestInbox_PanicRollsBackAndCountsAnAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		_, err := g.Run(t.Context(), call("m1"), inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) { panic("boom") }).run)
		if p := as[*oncemill.PanicError](t, err); p.Value != "boom" ||
			answertest.Want(t, err, oncemill.StatusRetry).Uncounted {
			t.Errorf("%v", err)
		}
		inbox.effects(t, 0)
	})
}

func TestInbox_OutputsThatCannotBeStoredFailTheRunAndRollBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: ""}}}, nil
		})
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Outcome.Kind != dedupstore.Failed {
			t.Errorf("%+v, %v", res, err)
		}
		inbox.effects(t, 0)
	})
}

func TestInbox_LongResultIsCutForDuplicates(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxResultBytes: 3})
		h := inbox.charging(t, nil)
		first, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || string(first.Outcome.Result) != "receipt" || first.Outcome.Truncated {
			t.Errorf("first: %+v, %v", first, err)
		}
		dup, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || string(dup.Outcome.Result) != "rec" || !dup.Outcome.Truncated {
			t.Errorf("duplicate: %+v, %v", dup, err)
		}
	})
}

func TestInbox_OutputsOfAnySizeArePublishedAfterTheCommit(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxProducedBytes: 1})
		h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "out", Payload: make([]byte, 1<<20)}}}, nil
		})
		p := publisher{fail: func(call int) error {
			inbox.effects(t, 1)
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
		if err != nil || !res.Duplicate || len(res.Outcome.Produced) != 1 || len(res.Outcome.Produced[0].Payload) != 1<<20 {
			t.Errorf("redelivery: %d outputs, duplicate %t, %v", len(res.Outcome.Produced), res.Duplicate, err)
		}
		p.want(t, "out")
		h.want(t, 1)
		inbox.effects(t, 1)
	})
}

// What a run has committed is its own to publish. If its lease cannot be renewed for that, the caller learns how it
// ended, and when a redelivery may publish it.
func TestInbox_OutputsWhoseLeaseCannotBeRenewedAreUnpublished(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		inbox.records.extend = func(func() error) error { return errDown }
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			defer time.Sleep(15 * time.Second) // virtual: the commit takes half of the lease
			return do(work)
		}
		h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "out"}}}, nil
		})
		var p publisher
		c := call("m1")
		c.Publish = p.publish
		_, err := newGuard(t, inbox, oncemill.Policy{Lease: 30 * time.Second}).Run(t.Context(), c, h.run)
		if e := answertest.Want(t, err, oncemill.StatusUnpublished); e.Wait != 30*time.Second {
			t.Errorf("a redelivery may publish it after %v, want the lease", e.Wait)
		}
		p.want(t)
		inbox.effects(t, 1)
	})
}

func TestInbox_OutputsMayBeLeftToTheCaller(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "out"}}}, nil
		})
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Publication == nil || len(res.Publication.Messages()) != 1 || res.Attempt != 1 {
			t.Fatalf("%+v, %v", res, err)
		}
		inbox.effects(t, 1)
		time.Sleep(5 * g.Policy().Lease) // it keeps its lease
		_, err = g.Run(t.Context(), call("m1"), h.run)
		answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)
		if err := res.Publication.Done(); err != nil {
			t.Error(err)
		}
		if res, err := g.Run(t.Context(), call("m1"), h.run); err != nil || !res.Duplicate || res.Publication != nil {
			t.Errorf("duplicate: %+v, %v", res, err)
		}
		h.want(t, 1)
	})
}

func TestInbox_RunOfSeveralLeasesKeepsItsClaim(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			time.Sleep(5 * g.Policy().Lease)
			_, err := g.Run(t.Context(), call("m1"), (&counter{}).run)
			answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)
			return dedupstore.Outcome{}, nil
		})
		if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
			t.Error(err)
		}
		inbox.effects(t, 1)
	})
}

// A dead letter is as large as its message. It must not be out while another run can still succeed.
func TestInbox_DeadLettersOfAnySizeAreStoredBeforeTheyArePublished(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		inbox.records.extend = func(func() error) error { return errDown }
		g := newGuard(t, inbox, oncemill.Policy{MaxProducedBytes: 1})
		var dead publisher
		copied := call("m1")
		copied.DeadLetter = func(o dedupstore.Outcome, _ int, _ uint64) []dedupstore.Produced {
			return []dedupstore.Produced{{ID: "dead:" + string(o.Kind), Payload: []byte("as large as the message")}}
		}
		copied.Publish = dead.publish
		c := copied
		c.Publish = func(ctx context.Context, produced []dedupstore.Produced) error {
			time.Sleep(2 * g.Policy().Lease)
			res, err := g.Run(t.Context(), copied, inbox.charging(t, nil).run)
			if err != nil || res.Outcome.Kind != dedupstore.Failed {
				t.Errorf("a copy, after the lease: %+v, %v", res, err)
			}
			return dead.publish(ctx, produced)
		}
		if _, err := g.Run(t.Context(), c, inbox.charging(t, failing(oncemill.Permanent(errRefused))).run); err != nil {
			t.Errorf("who has published the stored dead letter: %v", err)
		}
		dead.want(t, "dead:failed", "dead:failed")
		inbox.effects(t, 0)
	})
}
