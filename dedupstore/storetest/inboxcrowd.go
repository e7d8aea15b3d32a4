package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var inboxCrowdCases = []inboxCase{
	{
		name: "inbox/keys-in-parallel",
		why:  "different keys are different messages",
		test: func(k *inboxKit) {
			const keys = 20
			claims := make([]dedupstore.Claim, keys)
			for i := range claims {
				claims[i] = k.run(fmt.Sprint(i))
			}
			for i, err := range k.together(claims) {
				if err != nil {
					k.Fatalf("one of %d transactions at once, of key %d, returned %v", keys, i, err)
				}
				k.effects(claims[i], 1)
				k.claim(k.request(fmt.Sprint(i)), dedupstore.Done)
			}
		},
	},
	{
		name: "inbox/one-of-many-owners-commits",
		why:  "all who held the key one after the other may come back at once",
		test: func(k *inboxKit) {
			claims := make([]dedupstore.Claim, 6)
			for i := range claims {
				r := k.brief("1")
				r.MaxAttempts = len(claims)
				if i == len(claims)-1 {
					r.Lease = long
				}
				claims[i] = k.claim(r, dedupstore.AcquiredRun).Claim
				if i < len(claims)-1 {
					k.pass(short)
				}
			}
			for i, err := range k.together(claims) {
				if i < len(claims)-1 {
					k.lost(err, "the transaction of zombie %d", i)
				} else if err != nil {
					k.Errorf("the transaction of the last owner returned %v", err)
				}
			}
			k.effects(claims[0], 1)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "inbox/one-owner-asking-at-once",
		why:  "the same transaction may be under way twice: one of them has its effect",
		test: func(k *inboxKit) {
			c := k.run("1")
			for _, err := range k.together([]dedupstore.Claim{c, c, c, c}) {
				if err != nil {
					k.Errorf("one of four copies of a transaction returned %v, want nil", err)
				}
			}
			k.effects(c, 1)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "inbox/commit-against-takeover",
		why:  "a late commit and a takeover at the same moment: one of them wins, and both learn which",
		test: func(k *inboxKit) {
			const keys = 20
			dead := make([]dedupstore.Claim, keys)
			for i := range dead {
				dead[i] = k.claim(k.brief(fmt.Sprint(i)), dedupstore.AcquiredRun).Claim
			}
			k.pass(short)
			problems := make([]error, keys)
			var group sync.WaitGroup
			for i := range dead {
				group.Go(func() { problems[i] = k.contest(dead[i]) })
			}
			group.Wait()
			for i, problem := range problems {
				if problem != nil {
					k.Errorf("key %d: %v", i, problem)
				}
				k.effects(dead[i], 1)
				k.claim(k.request(fmt.Sprint(i)), dedupstore.Done)
			}
		},
	},
}

// together makes the transactions of several claims at once.
func (k *inboxKit) together(claims []dedupstore.Claim) []error {
	errs := make([]error, len(claims))
	start := make(chan struct{})
	var group sync.WaitGroup
	for i, c := range claims {
		group.Go(func() {
			<-start
			errs[i] = k.insist(c, func(ctx context.Context) (dedupstore.Settlement, error) {
				s, err := k.charge(c)(ctx)
				<-time.After(time.Millisecond) // the others begin, if they may
				return s, err
			})
		})
	}
	close(start)
	group.Wait()
	return errs
}

// insist makes a transaction again when the database has refused it because of others, as redeliveries do.
func (k *inboxKit) insist(c dedupstore.Claim, w work) error {
	for start := time.Now(); ; <-time.After(rand.N(20 * time.Millisecond)) {
		err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c, w)
		if _, conflict := errors.AsType[*dedupstore.ConflictError](err); !conflict || time.Since(start) > waitLimit {
			return err
		}
	}
}

// contest lets a dead holder's transaction and a takeover meet, and commits what the successor is granted.
func (k *inboxKit) contest(dead dedupstore.Claim) error {
	var zombie, claim error
	var next dedupstore.Answer
	var group sync.WaitGroup
	group.Go(func() { zombie = k.insist(dead, k.charge(dead)) })
	group.Go(func() { next, claim = dedupstore.ClaimOne(k.Context(), k.Store, k.request(dead.Key.ID)) })
	group.Wait()
	if claim != nil {
		return claim
	}
	switch next.Status {
	case dedupstore.AcquiredRun:
		if !errors.Is(zombie, dedupstore.ErrClaimLost) {
			return fmt.Errorf("another was granted the run, and the transaction returned %w", zombie)
		}
		return k.insist(next.Claim, k.charge(dead))
	case dedupstore.Busy, dedupstore.Done:
		return zombie
	}
	return errors.New("a claim was answered " + string(next.Status))
}

var inboxFaultCases = []inboxCase{
	{
		name: "inbox/conflicts-are-repeated",
		why: "a serialization failure or a deadlock says nothing of the message: it is no failure, and each try " +
			"starts from nothing",
		needs: func(s InboxSubject) bool { return s.Conflict != nil },
		test: func(k *inboxKit) {
			c := k.run("1")
			calls := 0
			k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
				calls++
				s, err := k.charge(c)(ctx)
				if err == nil && calls < 3 {
					err = fmt.Errorf("charge: %w", k.in.Conflict(ctx))
				}
				return s, err
			})
			if calls < 3 { // more often if others were in its way, too
				k.Errorf("work was called %d times, want 3: until the database refuses it no more", calls)
			}
			k.effects(c, 1)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "inbox/conflicts-end",
		why: "a transaction that the database refuses again and again must not hold its message for ever, nor be " +
			"taken for a failure",
		needs: func(s InboxSubject) bool { return s.Conflict != nil },
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			calls := 0
			err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					if calls++; calls > 1000 {
						return nil, errors.New("enough")
					}
					return nil, errors.Join(k.in.Effect(ctx, k.name(c.Key)), k.in.Conflict(ctx))
				})
			if conflict, ok := errors.AsType[*dedupstore.ConflictError](err); !ok || conflict.Err == nil ||
				!conflict.Uncounted() {
				k.Errorf("after %d conflicts the transaction returned %v, "+
					"want a ConflictError that wraps the database's",
					calls, err)
			}
			if calls < 2 {
				k.Errorf("work was called %d times, want several", calls)
			}
			k.untouched(r, c)
			k.settle(c, dedupstore.Release{Uncounted: true})
		},
	},
	{
		name:  "inbox/aborted-is-not-committed",
		why:   "a handler that overlooks the error of a statement must not be told that its effects are there",
		needs: func(s InboxSubject) bool { return s.Abort != nil },
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					s, err := k.charge(c)(ctx)
					k.in.Abort(ctx)
					return s, err
				})
			if err == nil {
				k.Error("a transaction that cannot be committed returned nil")
			}
			k.untouched(r, c)
		},
	},
	{
		name:  "inbox/lost-answer-is-looked-up",
		why:   "a commit whose answer is lost has happened: taken for a failure, its effect would be made again",
		needs: func(s InboxSubject) bool { return s.LoseCommit != nil },
		test: func(k *inboxKit) {
			c := k.run("1")
			w := k.notAgain(c, finish(succeeded("paid")))
			k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
				k.in.LoseCommit(ctx, true)
				return w(ctx)
			})
			k.effects(c, 1)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name:  "inbox/lost-commit-is-no-success",
		why:   "a commit that never arrived has not happened: taken for a success, its message would be lost",
		needs: func(s InboxSubject) bool { return s.LoseCommit != nil },
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			calls := 0
			err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					if calls++; calls == 1 {
						k.in.LoseCommit(ctx, false)
					}
					return k.charge(c)(ctx)
				})
			if err == nil { // it was made again
				k.effects(c, 1)
				k.claim(k.request("1"), dedupstore.Done)
				return
			}
			if errors.Is(err, dedupstore.ErrClaimLost) {
				k.Errorf("the transaction returned %v, although nobody took over", err)
			}
			k.untouched(r, c)
		},
	},
}
