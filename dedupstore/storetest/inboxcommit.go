package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var inboxCommitCases = []inboxCase{
	{
		name: "inbox/effect-and-outcome-are-one",
		why:  "whoever crashes, the effect and the outcome must be there together, or neither",
		test: func(k *inboxKit) {
			c := k.run("1")
			var watching sync.WaitGroup
			var first sync.Once // the transaction may be repeated
			watched := make(chan error, 1)
			k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
				s, err := k.charge(c)(ctx)
				k.effects(c, 0)
				k.claim(k.request("1"), dedupstore.Busy)
				first.Do(func() { watching.Go(func() { watched <- k.watch(c) }) })
				<-time.After(10 * time.Millisecond) // the watcher sees what is before the commit
				return s, err
			})
			k.effects(c, 1)
			watching.Wait()
			if err := <-watched; err != nil {
				k.Error(err)
			}
			for range 2 {
				a := k.claim(k.request("1"), dedupstore.Done)
				k.sameOutcome(a.Outcome, succeeded("paid"))
				if a.Fence != c.Fence {
					k.Errorf("Done names fence %d, want that of the run, %d", a.Fence, c.Fence)
				}
			}
		},
	},
	{
		name: "inbox/what-was-produced-commits-too",
		why:  "messages that are to be published must be known exactly if the effect is",
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
				return finishTo(succeeded("paid"), receipt), k.in.Effect(ctx, k.name(c.Key))
			})
			k.effects(c, 1)
			o := succeeded("paid")
			o.Produced = []dedupstore.Produced{receipt}
			k.sameOutcome(k.claim(r, dedupstore.AcquiredPublish).Outcome, o)
			k.found(k.claim(k.request("1"), dedupstore.Busy), dedupstore.Publishing)
			k.settle(c, published())
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, o)
		},
	},
	{
		name: "inbox/publish-step-is-taken-over",
		why:  "who commits and dies leaves messages that others publish, without an effect of theirs",
		test: func(k *inboxKit) {
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
				return finishTo(succeeded("paid"), receipt), k.in.Effect(ctx, k.name(c.Key))
			})
			k.pass(short)
			next := k.claim(k.request("1"), dedupstore.AcquiredPublish)
			if len(next.Outcome.Produced) != 1 {
				k.Errorf("%d messages are to be published, want 1", len(next.Outcome.Produced))
			}
			k.losesClaim(next.Claim, "a publisher")
			k.settle(next.Claim, published())
			k.effects(c, 1)
		},
	},
	{
		name: "inbox/finished-work-is-not-repeated",
		why:  "a transaction that is sent again, because the answer was lost, finds its own outcome and adds no effect",
		test: func(k *inboxKit) {
			for id, f := range map[string]dedupstore.Finish{
				"done":       finish(succeeded("paid")),
				"publishing": finishTo(succeeded("paid"), receipt),
			} {
				c := k.run(id)
				for range 3 {
					k.commits(c, k.notAgain(c, f))
				}
				k.effects(c, 1)
			}
			c := k.run("settled")
			k.settle(c, finish(succeeded("paid")))
			k.commits(c, k.charge(c))
			k.effects(c, 0)
		},
	},
	{
		name: "inbox/expiry-does-not-revoke",
		why:  "a run that took longer than its lease, with nobody having taken over, is as good as any",
		test: func(k *inboxKit) {
			c := k.crashed("1")
			k.commits(c, k.charge(c))
			k.effects(c, 1)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "inbox/heartbeats-do-not-spoil-it",
		why:  "a handler may take several leases: its heartbeat neither waits for the transaction nor makes it fail",
		test: func(k *inboxKit) {
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
				s, err := k.charge(c)(ctx)
				for range 5 {
					k.pass(short)
					k.soon("a heartbeat", func(ctx context.Context) error {
						return dedupstore.ExtendOne(ctx, k.in.Inbox, dedupstore.Extension{
							Claim: c, Lease: long, Started: true,
						})
					})
				}
				k.claim(k.request("1"), dedupstore.Busy)
				return s, err
			})
			k.effects(c, 1)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "inbox/only-a-finish-commits",
		why:  "effects that are committed without an outcome would be made again by the next run",
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			for _, s := range []dedupstore.Settlement{
				nil, dedupstore.Release{}, published(),
				&dedupstore.Finish{}, dedupstore.Finish{}, finish(dedupstore.Outcome{Kind: "odd"}),
			} {
				err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
					func(ctx context.Context) (dedupstore.Settlement, error) {
						return s, k.in.Effect(ctx, k.name(c.Key))
					})
				if _, ok := errors.AsType[*dedupstore.InvalidError](err); !ok {
					k.Errorf("a transaction that ends in %T %+v returned %v, want an InvalidError", s, s, err)
				}
				k.untouched(r, c)
			}
			k.commits(c, k.charge(c))
			k.effects(c, 1)
		},
	},
	{
		name: "inbox/context-is-the-caller's",
		why:  "handlers find in their context what the caller has put there",
		test: func(k *inboxKit) {
			type mine struct{}
			c := k.run("1")
			ctx, cancel := context.WithTimeout(context.WithValue(k.Context(), mine{}, "yes"), long)
			defer cancel()
			err := dedupstore.InTxOne(ctx, k.in.Inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				if ctx.Value(mine{}) != "yes" {
					k.Error("work's context has not the values of the caller's")
				}
				return k.charge(c)(ctx)
			})
			if err != nil {
				k.Error(err)
			}
		},
	},
	{
		name: "inbox/transaction-ends-with-it",
		why:  "what a handler leaves running must not write when the transaction is over, least of all outside of it",
		test: func(k *inboxKit) {
			boom := errors.New("no")
			for id, end := range map[string]error{"committed": nil, "rolled back": boom} {
				c := k.run(id)
				var kept context.Context
				err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
					func(ctx context.Context) (dedupstore.Settlement, error) {
						kept = context.WithoutCancel(ctx) //nolint:fatcontext // as what a handler leaves running does
						return finish(succeeded("")), end
					})
				if err != end { //nolint:errorlint // itself
					k.Errorf("%s: the transaction returned %v, want %v", id, err, end)
				}
				if err := k.in.Effect(kept, k.name(c.Key)); err == nil {
					k.Errorf("%s: a write after the end returned nil", id)
				}
				k.effects(c, 0)
			}
		},
	},
}

// notAgain is work that must not be called when it is committed. Before that it may be, again and again, because of
// others.
func (k *inboxKit) notAgain(c dedupstore.Claim, f dedupstore.Finish) work {
	return func(ctx context.Context) (dedupstore.Settlement, error) {
		if n, err := k.in.Effects(k.Context(), k.name(c.Key)); n != 0 || err != nil {
			k.Errorf("work was called when %d effects were committed (%v)", n, err)
		}
		return f, k.in.Effect(ctx, k.name(c.Key))
	}
}

// watch looks at effect and outcome from outside until there is an outcome.
func (k *inboxKit) watch(c dedupstore.Claim) error {
	for start := time.Now(); time.Since(start) < waitLimit; {
		before, err := k.in.Effects(k.Context(), k.name(c.Key))
		if err != nil {
			return err
		}
		a, err := dedupstore.ClaimOne(k.Context(), k.Store, k.request(c.Key.ID))
		if err != nil {
			return err
		}
		after, err := k.in.Effects(k.Context(), k.name(c.Key))
		switch {
		case err != nil:
			return err
		case before == 1 && a.Status != dedupstore.Done:
			return errors.New("the effect could be seen, and the record was " + string(a.Status) + " after that")
		case a.Status == dedupstore.Done && after != 1:
			return errors.New("the record was done, and the effect could not be seen after that")
		case a.Status == dedupstore.Done:
			return nil
		case a.Status != dedupstore.Busy:
			return errors.New("a claim beside the transaction was answered " + string(a.Status))
		}
		<-time.After(time.Millisecond)
	}
	return errors.New("the key was not done after " + waitLimit.String())
}

// waitLimit is more than any operation takes that waits for nobody, on a slow machine.
const waitLimit = 2 * time.Minute

// soon wants an operation to end well, without waiting for the transaction that it is beside.
func (k *inboxKit) soon(what string, operation func(ctx context.Context) error) {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), waitLimit)
	defer cancel()
	if err := operation(ctx); err != nil {
		k.Errorf("%s beside the transaction: %v", what, err)
	}
}
