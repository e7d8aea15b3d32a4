package storetest

import (
	"context"
	"errors"

	"github.com/oncemill/oncemill/dedupstore"
)

var inboxLostCases = []inboxCase{
	{
		name:  "inbox/another's-outcome-is-no-success",
		why:   "who looks up a lost commit and finds the outcome of its successor has committed nothing",
		needs: func(s InboxSubject) bool { return s.LoseCommit != nil && s.HideRecord != nil },
		test: func(k *inboxKit) {
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			var next dedupstore.Answer
			err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					s, err := k.charge(c)(ctx)
					k.in.LoseCommit(ctx, false)
					if next.Status != dedupstore.AcquiredRun {
						k.pass(short)
						next = k.ask(k.request("1"))
						if next.Status == dedupstore.AcquiredRun {
							k.settle(next.Claim, finish(succeeded("paid by another")))
						}
					}
					return s, err
				})
			if err == nil && next.Status == dedupstore.AcquiredRun {
				k.Error("the transaction returned nil, although another has finished the key")
			}
			if next.Status == dedupstore.AcquiredRun {
				k.effects(c, 0)
			}
		},
	},
	{
		name: "inbox/undecided-is-said",
		why: "who cannot know whether it has committed must say so: called a failure, its effect would be made " +
			"again, called a success, its message would be lost",
		needs: func(s InboxSubject) bool { return s.LoseCommit != nil && s.HideRecord != nil },
		test: func(k *inboxKit) {
			for id, applied := range map[string]bool{"applied": true, "not applied": false} {
				c := k.claim(k.brief(id), dedupstore.AcquiredRun).Claim
				err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
					func(ctx context.Context) (dedupstore.Settlement, error) {
						s, err := k.charge(c)(ctx)
						k.in.LoseCommit(ctx, applied)
						k.in.HideRecord(c, true)
						return s, err
					})
				k.in.HideRecord(c, false)
				if undecided, ok := errors.AsType[*dedupstore.UndecidedError](err); !ok || undecided.Err == nil {
					k.Errorf("%s: the transaction returned %v, want an UndecidedError that says why", id, err)
				}
				k.pass(short)
				k.truth(c, applied)
			}
		},
	},
}

// truth wants a claim after the lease to find what has become of an undecided transaction.
func (k *inboxKit) truth(c dedupstore.Claim, applied bool) {
	k.Helper()
	if applied {
		k.effects(c, 1)
		k.claim(k.request(c.Key.ID), dedupstore.Done)
		return
	}
	k.effects(c, 0)
	next := k.claim(k.request(c.Key.ID), dedupstore.AcquiredRun).Claim
	k.commits(next, k.charge(next))
	k.effects(c, 1)
}
