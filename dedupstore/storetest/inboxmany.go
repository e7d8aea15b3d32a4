package storetest

import (
	"context"
	"errors"
	"strconv"

	"github.com/oncemill/oncemill/dedupstore"
)

// inboxManyCases are about several runs in one transaction.
var inboxManyCases = []inboxCase{
	{
		name: "many/commit-together",
		why:  "a batch leaves all its effects and outcomes, each under its own claim and for its own window",
		test: func(k *inboxKit) {
			claims := k.claims(20)
			k.commitsAll(claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
				settlements := paid(claims)
				for i := range settlements {
					o := succeeded("paid " + strconv.Itoa(i))
					settlements[i] = dedupstore.Finish{Outcome: o, Retention: long}
				}
				err := k.chargeAll(ctx, claims)
				k.effects(claims[7], 0)
				return settlements, err
			})
			for i, c := range claims {
				k.effects(c, 1)
				a := k.claim(k.request(c.Key.ID), dedupstore.Done)
				k.sameOutcome(a.Outcome, succeeded("paid "+strconv.Itoa(i)))
				if a.Fence != c.Fence {
					k.Errorf("Done names fence %d, want that of the run, %d", a.Fence, c.Fence)
				}
			}
		},
	},
	{
		name: "many/what-was-produced-commits-too",
		why:  "messages that are to be published belong to their own run, whatever it is together with",
		test: func(k *inboxKit) {
			claims := k.claims(3)
			k.commitsAll(claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
				settlements := paid(claims)
				settlements[1] = finishTo(succeeded("paid"), receipt)
				return settlements, k.chargeAll(ctx, claims)
			})
			k.claim(k.request("0"), dedupstore.Done)
			k.found(k.claim(k.request("1"), dedupstore.Busy), dedupstore.Publishing)
			k.settle(claims[1], published())
			k.claim(k.request("2"), dedupstore.Done)
		},
	},
	{
		name: "many/error-rolls-all-back",
		why:  "what one run of a batch has failed for must not leave half of the batch behind",
		test: func(k *inboxKit) {
			claims := k.claims(5)
			refused := errors.New("card refused")
			err := k.inTx(claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
				_ = k.chargeAll(ctx, claims)
				return paid(claims), refused
			})
			if err != refused { //nolint:errorlint // itself
				k.Errorf("the batch returned %v, want its own error", err)
			}
			k.areFree(claims)
		},
	},
	{
		name: "many/one-lost-claim-rolls-all-back",
		why:  "another runs what was lost: its effect would be there twice, and the others' run again by themselves",
		test: func(k *inboxKit) {
			claims := k.claims(4)
			claims = append(claims, k.crashed("lost"))
			lost := claims[4]
			k.commits(k.claim(k.request("lost"), dedupstore.AcquiredRun).Claim, k.charge(lost))
			k.losesAll(claims)
			k.effects(lost, 1)
			k.areFree(claims[:4])
		},
	},
	{
		name: "many/claim-that-is-lost-meanwhile-rolls-all-back",
		why:  "a run that was taken over while the batch was at work must not be committed with it, nor the others without",
		test: func(k *inboxKit) {
			claims := k.claims(4)
			lost := k.claim(k.brief("lost"), dedupstore.AcquiredRun).Claim
			claims = append([]dedupstore.Claim{lost}, claims...)
			var next dedupstore.Answer
			err := k.inTx(claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
				err := k.chargeAll(ctx, claims)
				if next.Status == dedupstore.AcquiredRun { // the database refused it because of that
					return paid(claims), err
				}
				k.pass(short)
				k.soon("a claim", func(ctx context.Context) (err error) {
					next, err = dedupstore.ClaimOne(ctx, k.Store, k.request("lost"))
					return err
				})
				return paid(claims), err
			})
			if next.Status == dedupstore.Busy { // it waits for the transaction
				if err != nil {
					k.Errorf("nobody took over, and the batch returned %v", err)
				}
				return
			}
			k.lost(err, "a batch of which one run was taken over")
			k.effects(lost, 0)
			k.areFree(claims[1:])
		},
	},
	{
		name: "many/settled-before-is-lost",
		why:  "a run whose outcome is there has its effect: with the others it would have another",
		test: func(k *inboxKit) {
			claims := k.claims(3)
			k.commits(claims[1], k.charge(claims[1]))
			k.losesAll(claims)
			k.effects(claims[1], 1)
			k.areFree([]dedupstore.Claim{claims[0], claims[2]})
		},
	},
	{
		name: "many/finished-batch-is-not-repeated",
		why:  "a batch whose answer was lost finds its own outcomes, and adds no effect",
		test: func(k *inboxKit) {
			claims := k.claims(5)
			for range 2 {
				k.commitsAll(claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
					return paid(claims), k.chargeAll(ctx, claims)
				})
			}
			for _, c := range claims {
				k.effects(c, 1)
			}
		},
	},
	{
		name: "many/one-finish-each",
		why:  "effects that are committed without an outcome would be made again by the next run",
		test: func(k *inboxKit) {
			claims := k.claims(3)
			for _, settlements := range [][]dedupstore.Settlement{
				nil, paid(claims[:2]), append(paid(claims), finish(succeeded("paid"))),
				{finish(succeeded("paid")), dedupstore.Release{}, finish(succeeded("paid"))},
			} {
				err := k.inTx(claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
					return settlements, k.chargeAll(ctx, claims)
				})
				if !isInvalid(err) {
					k.Errorf("%d settlements of 3 runs returned %v, want an InvalidError", len(settlements), err)
				}
			}
			k.areFree(claims)
		},
	},
	{
		name:  "many/conflicts-are-repeated",
		why:   "what the database refuses because of others is no failure of the work",
		needs: func(s InboxSubject) bool { return s.Conflict != nil },
		test: func(k *inboxKit) {
			claims, calls := k.claims(5), 0
			k.commitsAll(claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
				err := k.chargeAll(ctx, claims)
				if calls++; err == nil && calls < 3 {
					err = k.in.Conflict(ctx)
				}
				return paid(claims), err
			})
			for _, c := range claims {
				k.effects(c, 1)
			}
		},
	},
	{
		name:  "many/lost-answer-is-looked-up",
		why:   "a commit without an answer has happened for all runs or for none, and the records tell",
		needs: func(s InboxSubject) bool { return s.LoseCommit != nil },
		test: func(k *inboxKit) {
			for _, applied := range []bool{true, false} {
				claims := k.claims(4)
				err := k.inTx(claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
					err := k.chargeAll(ctx, claims)
					k.in.LoseCommit(ctx, applied)
					return paid(claims), err
				})
				if applied && err != nil {
					k.Errorf("a batch that was committed returned %v", err)
				}
				if err != nil {
					k.areFree(claims)
					continue
				}
				for _, c := range claims {
					k.effects(c, 1)
					k.settle(c, finish(succeeded("paid"))) // repeated
				}
				k.group += "-next"
			}
		},
	},
	{
		name:  "many/first-runs-beside-claimed-ones",
		why:   "a batch may have messages that were delivered before, whose claims count, beside new ones",
		needs: makesFirst,
		test: func(k *inboxKit) {
			claims, requests := k.claims(3), k.many(6) // three of these keys are claimed
			runs := append(firsts(requests), runsOf(claims)...)
			batch := func(problem error) ([]dedupstore.Answer, error) {
				return k.in.Inbox.InTx(k.Context(), runs,
					func(ctx context.Context, all []dedupstore.Claim) ([]dedupstore.Settlement, error) {
						if len(all) != 6 || all[0].Key.ID != "3" || all[3] != claims[0] {
							k.Fatalf("the work got %+v", all)
						}
						return paid(all), errors.Join(k.chargeAll(ctx, all), problem)
					})
			}
			refused := errors.New("row 17")
			if _, err := batch(refused); !errors.Is(err, refused) {
				k.Fatalf("the batch returned %v, want its error", err)
			}
			for _, r := range requests {
				k.effects(dedupstore.Claim{Key: r.Key}, 0)
			}
			answers, err := batch(nil)
			if err != nil || answers[0].Status == "" || answers[3].Status != "" || answers[6].Status != "" {
				k.Fatalf("the batch returned %+v, %v", answers, err)
			}
			for _, r := range requests {
				k.effects(dedupstore.Claim{Key: r.Key}, 1)
				k.claim(r, dedupstore.Done)
			}
		},
	},
	{
		name:  "many/first-run-of-another-leaves-the-claimed-ones",
		why:   "a new message that somebody else has at work must not keep redelivered ones from their transaction",
		needs: makesFirst,
		test: func(k *inboxKit) {
			claimed := k.run("claimed")
			k.makes(k.request("1"), func(ctx context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
				twin := k.request("1")
				runs := append(firsts([]dedupstore.Request{twin}), runsOf([]dedupstore.Claim{claimed})...)
				answers, err := k.in.Inbox.InTx(k.Context(), runs,
					func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
						return paid(claims), k.chargeAll(ctx, claims)
					})
				if err != nil || answers == nil || answers[0].Status != dedupstore.Busy || answers[1].Status != "" {
					k.Errorf("the batch returned %+v, %v, want busy and committed", answers, err)
				}
				return k.charge(c)(ctx)
			})
			k.effects(claimed, 1)
			k.claim(k.request("claimed"), dedupstore.Done)
			k.effects(dedupstore.Claim{Key: k.key("1")}, 1)
		},
	},
	{
		name: "many/one-run-at-least",
		why:  "a transaction of nobody would commit effects without an outcome",
		test: func(k *inboxKit) {
			_, err := k.in.Inbox.InTx(k.Context(), nil,
				func(context.Context, []dedupstore.Claim) ([]dedupstore.Settlement, error) {
					k.Error("the work of no run was called")
					return nil, nil
				})
			if !isInvalid(err) {
				k.Errorf("no runs returned %v, want an InvalidError", err)
			}
		},
	},
}

// claims are the claims of so many keys, "0", "1" and so on.
func (k *inboxKit) claims(n int) []dedupstore.Claim {
	claims := make([]dedupstore.Claim, n)
	for i := range claims {
		claims[i] = k.run(strconv.Itoa(i))
	}
	return claims
}

// runsOf are the runs of claims.
func runsOf(claims []dedupstore.Claim) []dedupstore.TxRun {
	runs := make([]dedupstore.TxRun, len(claims))
	for i, c := range claims {
		runs[i].Claim = c
	}
	return runs
}

// paid are the settlements of a batch that has succeeded.
func paid(claims []dedupstore.Claim) []dedupstore.Settlement {
	settlements := make([]dedupstore.Settlement, len(claims))
	for i := range settlements {
		settlements[i] = finish(dedupstore.Outcome{Kind: dedupstore.Succeeded})
	}
	return settlements
}

// inTx runs the work of claims in one transaction.
func (k *inboxKit) inTx(
	claims []dedupstore.Claim, w func(context.Context) ([]dedupstore.Settlement, error),
) error {
	_, err := k.in.Inbox.InTx(k.Context(), runsOf(claims),
		func(ctx context.Context, _ []dedupstore.Claim) ([]dedupstore.Settlement, error) { return w(ctx) })
	return err
}

// commitsAll wants a batch to be committed.
func (k *inboxKit) commitsAll(
	claims []dedupstore.Claim, w func(context.Context) ([]dedupstore.Settlement, error),
) {
	k.Helper()
	if err := k.inTx(claims, w); err != nil {
		k.Fatalf("the batch returned %v, want nil", err)
	}
}

// losesAll wants a batch to be refused because of a claim.
func (k *inboxKit) losesAll(claims []dedupstore.Claim) {
	k.Helper()
	err := k.inTx(claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
		return paid(claims), k.chargeAll(ctx, claims)
	})
	if !errors.Is(err, dedupstore.ErrClaimLost) {
		k.Errorf("a batch with a lost claim returned %v, want ErrClaimLost", err)
	}
}

// areFree wants nothing of runs to be committed, and their claims to be as good as before: each commits by itself.
func (k *inboxKit) areFree(claims []dedupstore.Claim) {
	k.Helper()
	for _, c := range claims {
		k.effects(c, 0)
		k.claim(k.request(c.Key.ID), dedupstore.Busy)
		k.commits(c, k.charge(c))
		k.effects(c, 1)
	}
}
