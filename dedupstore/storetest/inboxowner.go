package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var inboxOwnerCases = []inboxCase{
	{
		name: "inbox/owner-is-compared",
		why:  "who does not hold the claim must not have an effect, nor decide the outcome",
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			forged := c
			forged.Owner = newOwner()
			k.losesClaim(forged, "another owner")
			k.untouched(r, c)
			k.commits(c, k.charge(c))
			k.losesClaim(forged, "another owner, when done")
			k.effects(c, 1)
		},
	},
	{
		name: "inbox/fence-is-compared",
		why:  "one token can own a record twice, by a late copy of its claim: the run of the earlier fence is a zombie",
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			for _, fence := range []uint64{c.Fence - 1, c.Fence + 1} {
				forged := c
				forged.Fence = fence
				k.losesClaim(forged, "another fence")
			}
			k.untouched(r, c)
		},
	},
	{
		name: "inbox/zombie-rolls-back",
		why:  "a zombie that comes back must not add its effect to its successor's",
		test: func(k *inboxKit) {
			zombie := k.crashed("1")
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			k.losesClaim(zombie, "a zombie")
			k.untouched(r, c)
			k.commits(c, k.charge(c))
			k.losesClaim(zombie, "a zombie, when done")
			k.effects(c, 1)
		},
	},
	{
		name: "inbox/taken-over-during-the-work",
		why: "a lease can end under a handler that writes: its successor is granted the run or kept waiting, but " +
			"two never commit",
		test: func(k *inboxKit) {
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			var next dedupstore.Answer
			err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					s, err := k.charge(c)(ctx)
					if next.Status == dedupstore.AcquiredRun { // the database refused it because of that
						return s, err
					}
					k.pass(short)
					k.soon("a claim", func(ctx context.Context) (err error) {
						next, err = dedupstore.ClaimOne(ctx, k.Store, k.request("1"))
						return err
					})
					return s, err
				})
			switch next.Status {
			case dedupstore.AcquiredRun:
				k.lost(err, "the transaction of a holder whose claim was taken over")
				k.effects(c, 0)
				k.commits(next.Claim, k.charge(c))
			case dedupstore.Busy:
				if err != nil {
					k.Errorf("nobody took over, and the transaction returned %v", err)
				}
			default:
				k.Errorf("a claim beside the transaction was answered %s", next.Status)
			}
			k.effects(c, 1)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "inbox/not-after-release",
		why:  "a run that was given back may be another's at any moment",
		test: func(k *inboxKit) {
			c := k.run("1")
			k.settle(c, dedupstore.Release{})
			k.losesClaim(c, "an owner that released")
			k.effects(c, 0)
			next := k.claim(k.request("1"), dedupstore.AcquiredRun).Claim
			k.losesClaim(c, "an owner that released, and has a successor")
			k.commits(next, k.charge(c))
			k.effects(c, 1)
		},
	},
	{
		name: "inbox/no-record-is-lost",
		why:  "an outcome of a record that is gone must not start one: another owner may have finished it long ago",
		test: func(k *inboxKit) {
			never := dedupstore.Claim{Key: k.key("never"), Owner: newOwner(), Fence: 1, Attempt: 1, Lease: long,
				Retention: long}
			r := k.brief("gone")
			r.Retention = short
			gone := k.claim(r, dedupstore.AcquiredRun).Claim
			k.pass(2 * short)
			for _, c := range []dedupstore.Claim{never, gone} {
				k.losesClaim(c, "nobody")
				k.effects(c, 0)
				k.found(k.claim(k.request(c.Key.ID), dedupstore.AcquiredRun), dedupstore.Absent)
			}
		},
	},
	{
		name: "inbox/not-the-publisher's",
		why:  "an outcome that a claim decided is not undone by who got it to publish",
		test: func(k *inboxKit) {
			k.settle(k.run("1"), dedupstore.Release{})
			r := k.request("1")
			r.MaxAttempts = 1
			c := k.claim(r, dedupstore.AcquiredPublish).Claim
			k.losesClaim(c, "a publisher")
			k.settle(c, published())
			k.losesClaim(c, "a publisher, when done")
			k.effects(c, 0)
		},
	},
}

// twinBound is how soon a twin has its answer beside an open transaction, on a machine that has time. How fast a store
// is beyond that is for its own tests: one that waits for the transaction waits for ever here.
const twinBound = 200 * time.Millisecond

var inboxTwinCases = []inboxCase{
	{
		name: "inbox/twin-is-busy-at-once",
		why:  "a copy that waited for its twin's transaction would hold a connection, and its broker's patience",
		test: func(k *inboxKit) {
			k.within(twinBound, func(k *inboxKit, limit time.Duration) {
				c := k.run("1")
				k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
					s, err := k.charge(c)(ctx)
					for range 3 {
						if problem := k.twin(limit, "1", dedupstore.Busy); problem != nil {
							k.Fatal(problem)
						}
					}
					return s, err
				})
			})
		},
	},
	{
		name: "inbox/twin-is-answered-until-the-commit",
		why:  "between the end of the work and the commit the record is written: a copy must not wait for that either",
		test: func(k *inboxKit) {
			k.within(twinBound, func(k *inboxKit, limit time.Duration) {
				c := k.run("1")
				problems := make(chan error, 1)
				var first sync.Once // the transaction may be repeated
				k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
					s, err := k.charge(c)(ctx)
					first.Do(func() { go func() { problems <- k.twins(limit, "1") }() })
					<-time.After(5 * time.Millisecond)
					return s, err
				})
				if problem := <-problems; problem != nil {
					k.Fatal(problem)
				}
			})
		},
	},
}

// twin claims, and reports an answer that is not one of those wanted, or does not come within the limit.
func (k *inboxKit) twin(limit time.Duration, id string, want ...dedupstore.Status) error {
	ctx, cancel := context.WithTimeout(k.Context(), limit)
	defer cancel()
	start := time.Now()
	a, err := dedupstore.ClaimOne(ctx, k.Store, k.request(id))
	took := time.Since(start)
	if err != nil {
		return errors.New("a twin got no answer in " + took.String() + ": " + err.Error())
	}
	if took > limit {
		return errors.New("a twin was answered after " + took.String())
	}
	for _, status := range want {
		if a.Status == status {
			return nil
		}
	}
	return errors.New("a twin was answered " + string(a.Status))
}

// twins claims again and again until the key is done.
func (k *inboxKit) twins(limit time.Duration, id string) error {
	for start := time.Now(); time.Since(start) < waitLimit; {
		if err := k.twin(limit, id, dedupstore.Busy, dedupstore.Done); err != nil {
			return err
		}
		if k.twin(limit, id, dedupstore.Done) == nil {
			return nil
		}
		<-time.After(100 * time.Microsecond)
	}
	return errors.New("the key was not done after " + waitLimit.String())
}
