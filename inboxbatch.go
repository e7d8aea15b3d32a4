package oncemill

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A joint is a batch of runs in one transaction.
type joint struct {
	*together
	txs    []dedupstore.TxRun
	places map[string]int // of runs, by owner
	cancel canceler       // of the handler's context
	sent   time.Time
	took   time.Duration
	worked []int // of the last call of work
	failed error // what it returned
}

// attemptInTx attempts runs in one transaction of the inbox. Any error rolls all of it back. It returns the runs that
// are attempted alone: after an error, which costs no attempt, and where others run them or their outcome is known.
func (b *together) attemptInTx(ctx context.Context, which []int) (alone []int) {
	ctx, cancel := context.WithCancelCause(apart(ctx))
	defer cancel(nil)
	t := &joint{together: b, places: map[string]int{}, cancel: cancelFunc(cancel)}
	which, alone = t.begin(which)
	if len(which) < 2 {
		return append(alone, which...)
	}
	t.sent = time.Now()
	t.ask(which)
	defer follow(b.contexts, which, cancel)()
	var answers []dedupstore.Answer
	err := shielded(func() (err error) {
		answers, err = b.guard.inbox.InTx(ctx, t.txs, t.work)
		return err
	})
	for _, i := range which {
		if r := &b.runs[i]; !r.first {
			b.guard.heartbeat.remove(&r.lease)
		}
	}
	if err != nil {
		return append(alone, t.uncommitted(ctx, which, err)...)
	}
	firsts, known := 0, 0
	for n, i := range which {
		r := &b.runs[i]
		if r.first {
			firsts++
		}
		if len(answers) > 0 && answers[n].Status != "" {
			known++
			r.knows(&answers[n], t.sent)
			alone = append(alone, i)
		} else {
			t.committed(r)
		}
	}
	if firsts > 0 {
		b.guard.first.was(firsts == known)
	}
	return alone
}

// begin starts the claimed runs, and ends those that cannot start. A first run without a store that works runs alone.
func (t *joint) begin(which []int) (begun, alone []int) {
	var claimed []int
	for _, i := range which {
		r := &t.runs[i]
		if !r.first {
			claimed = append(claimed, i)
			continue
		}
		r.shard = t.guard.shards.of(t.contexts[i], &r.call.Key)
		if r.shard.breaker.healthy.Load() {
			begun = append(begun, i)
		} else {
			alone = append(alone, i)
		}
	}
	begun = append(begun, t.start(claimed)...)
	slices.Sort(begun)
	return begun, alone
}

// ask makes what InTx is asked for.
func (t *joint) ask(which []int) {
	t.txs = make([]dedupstore.TxRun, len(which))
	requests := make([]dedupstore.Request, len(which))
	for n, i := range which {
		r := &t.runs[i]
		t.places[r.token] = i
		if r.first {
			r.asks()
			requests[n] = t.guard.request(t.contexts[i], r.call, r.token)
			t.txs[n].First = &requests[n]
			continue
		}
		t.txs[n].Claim = *r.lease.claim
		r.lease.workUnder(t.cancel)
		r.lease.waits()
	}
}

// work is what InTx runs.
func (t *joint) work(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
	g := t.guard
	runs, calls := make([]Run, len(claims)), make([]int, len(claims))
	stands := true // for all first runs, whose lease is the transaction's
	for n := range claims {
		i := t.places[claims[n].Owner]
		runs[n], calls[n] = runOf(&claims[n]), i
		r := &t.runs[i]
		switch l := &r.lease; {
		case !r.first:
			l.handles()
		case stands:
			stands = false
			l.granted(&claims[n], r.shard, t.sent)
			var end func()
			ctx, end = g.beginFirst(ctx, l) //nolint:fatcontext // once: see stands
			defer end()
		default:
			l.claim = &claims[n]
		}
	}
	t.worked = calls
	began := time.Now()
	errs, err := t.call(ctx, runs, calls)
	t.took = since(began)
	if t.failed = errors.Join(append(errs, err)...); t.failed != nil {
		return nil, t.failed
	}
	o := dedupstore.Outcome{Kind: dedupstore.Succeeded}
	finish := dedupstore.Finish{Outcome: o, Retention: g.policy.Window, Took: t.took}
	return slices.Repeat([]dedupstore.Settlement{finish}, len(claims)), nil
}

// uncommitted goes on after an error. It returns the runs that are attempted alone.
func (t *joint) uncommitted(ctx context.Context, which []int, err error) (alone []int) {
	_, undecided := errors.AsType[*dedupstore.UndecidedError](err)
	handlers := err == t.failed                                          //nolint:errorlint // itself: another transaction's error may be in it
	if !handlers && (undecided || errors.Is(err, dedupstore.ErrEnded)) { // it may be committed
		for _, i := range which {
			if !slices.Contains(t.worked, i) { // its key is another's
				alone = append(alone, i)
				continue
			}
			r, ctx := &t.runs[i], t.contexts[i]
			w := &transacted{run: r, calls: 1, took: t.took}
			t.guard.running.Go(func() {
				r.settleTold(ctx, func() *ending {
					if r.first {
						return r.firstUncommitted(ctx, w, err)
					}
					return r.uncommitted(ctx, w, err)
				})
			})
		}
		return alone
	}
	t.guard.log.InfoContext(ctx, "oncemill: a batch was rolled back; its messages are handled one by one",
		"messages", len(which), "error", err)
	for _, i := range which {
		if r := &t.runs[i]; !r.first {
			r.lease.idle()
			t.guard.heartbeat.add(&r.lease)
		}
	}
	return which
}

// committed ends a run whose transaction has committed.
func (t *joint) committed(r *run) {
	ctx, c := t.contexts[r.place], r.lease.claim
	if r.first {
		r.count(ctx, &dedupstore.Answer{Status: dedupstore.AcquiredRun, Found: dedupstore.Absent, Claim: *c})
	}
	res, err := r.end(ctx, r.ends(ending{res: Result{
		Status: StatusDone, Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded},
		Fence: c.Fence, Attempt: c.Attempt, took: t.took,
	}}))
	t.ended(r, res, err)
}
