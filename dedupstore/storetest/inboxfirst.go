package storetest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// inboxFirstCases are for inboxes that make first runs without a claim.
var inboxFirstCases = []inboxCase{
	{
		name:  "first/effect-and-outcome-are-one",
		why:   "a run without a claim must leave both, or neither, under the fence that its handler was told",
		needs: makesFirst,
		test: func(k *inboxKit) {
			r := k.request("1")
			r.Holder = "host:1"
			var c dedupstore.Claim
			k.makes(r, func(ctx context.Context, claim dedupstore.Claim) (dedupstore.Settlement, error) {
				c = claim
				k.effects(c, 0)
				return k.charge(c)(ctx)
			})
			want := dedupstore.Claim{Key: r.Key, Owner: r.Owner, Fence: c.Fence, Attempt: 1, Lease: r.Lease,
				Retention: r.Retention, Holder: r.Holder}
			if c != want || c.Fence == 0 {
				k.Errorf("the work got the claim %+v, want %+v", c, want)
			}
			k.effects(c, 1)
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
		name:  "first/what-was-produced-commits-too",
		why:   "messages that are to be published are known only when the run is over, and belong to its claim",
		needs: makesFirst,
		test: func(k *inboxKit) {
			var c dedupstore.Claim
			k.makes(k.request("1"), func(ctx context.Context, claim dedupstore.Claim) (dedupstore.Settlement, error) {
				c = claim
				return finishTo(succeeded("paid"), receipt), k.in.Effect(ctx, k.name(c.Key))
			})
			k.effects(c, 1)
			k.found(k.claim(k.request("1"), dedupstore.Busy), dedupstore.Publishing)
			k.extend(c, long)
			k.settle(c, published())
			o := succeeded("paid")
			o.Produced = []dedupstore.Produced{receipt}
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, o)
		},
	},
	{
		name:  "first/outcome-is-kept-for-its-window",
		why:   "what is known at the beginning of a run is not how long its outcome is to be remembered",
		needs: makesFirst,
		test: func(k *inboxKit) {
			r := k.request("1")
			r.Lease, r.Retention = time.Second, short // a lease that a busy machine keeps to
			k.makes(r, func(_ context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
				return dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: long}, nil
			})
			k.pass(r.Lease + 2*short)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name:  "first/error-leaves-nothing",
		why:   "a run that failed is settled under a claim: until then there is no record of it, and no effect",
		needs: makesFirst,
		test: func(k *inboxKit) {
			r := k.request("1")
			refused := errors.New("card refused")
			var c dedupstore.Claim
			a, err := k.first(r, func(ctx context.Context, claim dedupstore.Claim) (dedupstore.Settlement, error) {
				c = claim
				_, _ = k.charge(c)(ctx)
				return nil, refused
			})
			if a.Status != "" || err != refused { //nolint:errorlint // itself
				k.Errorf("the run returned %q, %v, want its own error", a.Status, err)
			}
			k.effects(c, 0)
			next := k.claim(r, dedupstore.AcquiredRun)
			k.found(next, dedupstore.Absent)
			if next.Claim.Attempt != 1 || next.Claim.Fence < c.Fence {
				k.Errorf("the claim after fence %d is %+v, want that of the first attempt", c.Fence, next.Claim)
			}
		},
	},
	{
		name:  "first/twin-is-busy-at-once",
		why:   "a copy must neither run beside the first one, nor wait for its transaction, nor hold others up",
		needs: makesFirst,
		test: func(k *inboxKit) {
			k.within(twinBound, func(k *inboxKit, limit time.Duration) {
				k.makes(k.request("1"), func(ctx context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
					s, err := k.charge(c)(ctx)
					for range 3 {
						if problem := k.twin(limit, "1", dedupstore.Busy); problem != nil {
							k.Fatal(problem)
						}
						k.busy(k.request("1"))
						results := k.Store.Claim(k.Context(), []dedupstore.Request{k.request("1"), k.request(newOwner())})
						if results[0].Answer.Status != dedupstore.Busy || results[1].Answer.Status != dedupstore.AcquiredRun {
							k.Errorf("a twin and its neighbour were answered %+v", results)
						}
					}
					return s, err
				})
				k.claim(k.request("1"), dedupstore.Done)
			})
		},
	},
	{
		name:  "first/slow-run-keeps-the-key",
		why:   "a handler that lives may take longer than its lease: nobody extends that but the store",
		needs: makesFirst,
		test: func(k *inboxKit) {
			r := k.request("1")
			r.Lease = 6 * time.Second // a heartbeat has time on a busy machine
			k.makes(r, func(ctx context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
				for range 2 {
					k.pass(3 * r.Lease / 4)
					k.claim(k.request("1"), dedupstore.Busy)
				}
				return k.charge(c)(ctx)
			})
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name:  "first/one-of-many-runs",
		why:   "two of many copies at once must not have an effect each",
		needs: makesFirst,
		test: func(k *inboxKit) {
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					_, err := k.first(k.request("1"), func(
						ctx context.Context, c dedupstore.Claim,
					) (dedupstore.Settlement, error) {
						s, err := k.charge(c)(ctx)
						<-time.After(10 * time.Millisecond)
						return s, err
					})
					if err != nil {
						k.Error(err)
					}
				})
			}
			all.Wait()
			if n, err := k.in.Effects(k.Context(), k.name(k.key("1"))); err != nil || n > 1 {
				k.Errorf("%d effects are committed (%v), want 1", n, err)
			}
		},
	},
	{
		name:  "first/records-are-answered",
		why:   "whatever is known of a key decides, as for a claim: its handler is not called beside it",
		needs: makesFirst,
		test: func(k *inboxKit) {
			k.run("running")
			k.settle(k.run("done"), finish(succeeded("paid")))
			k.settle(k.run("due"), dedupstore.Release{})
			k.settle(k.run("waiting"), dedupstore.Release{Delay: long})
			for id, want := range map[string]dedupstore.Status{
				"running": dedupstore.Busy, "done": dedupstore.Done, "due": dedupstore.AcquiredRun,
				"waiting": dedupstore.Busy,
			} {
				a, err := k.first(k.request(id), k.never())
				if err != nil || a.Status != want {
					k.Errorf("%s: answered %q, %v, want %s", id, a.Status, err, want)
				}
				if a.Status == dedupstore.AcquiredRun {
					k.commits(a.Claim, k.charge(a.Claim))
				}
			}
		},
	},
	{
		name:  "first/conflicts-are-repeated",
		why:   "what the database refuses because of others is no failure of the work",
		needs: func(s InboxSubject) bool { return makesFirst(s) && s.Conflict != nil },
		test: func(k *inboxKit) {
			calls := 0
			k.makes(k.request("1"), func(ctx context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
				s, err := k.charge(c)(ctx)
				if calls++; err == nil && calls < 3 {
					err = k.in.Conflict(ctx)
				}
				return s, err
			})
			k.effects(dedupstore.Claim{Key: k.key("1")}, 1)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name:  "first/lost-answer-is-found-out",
		why:   "whether a commit without an answer has happened decides whether the effect is made again",
		needs: func(s InboxSubject) bool { return makesFirst(s) && s.LoseCommit != nil },
		test: func(k *inboxKit) {
			for id, applied := range map[string]bool{"applied": true, "not applied": false} {
				r := k.request(id)
				a, err := k.first(r, func(ctx context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
					s, err := k.charge(c)(ctx)
					k.in.LoseCommit(ctx, applied)
					return s, err
				})
				for end := time.Now().Add(waitLimit); a.Status == dedupstore.Busy && time.Now().Before(end); {
					<-time.After(10 * time.Millisecond) // until the database knows that the connection is lost
					a = k.ask(r)
				}
				committed := err == nil && (a.Status == "" || a.Status == dedupstore.Done)
				if committed != applied {
					k.Errorf("%s: answered %q, %v", id, a.Status, err)
				}
				if n := map[bool]int{true: 1}[applied]; !k.Failed() {
					k.effects(dedupstore.Claim{Key: r.Key}, n)
				}
			}
		},
	},
	{
		name:  "first/many-commit-together",
		why:   "a batch leaves all its effects and outcomes, under the fences that its handler was told",
		needs: makesFirst,
		test: func(k *inboxKit) {
			requests := k.many(100)
			committed, _ := k.makesAll(requests, func(ctx context.Context, claims []dedupstore.Claim) error {
				return k.chargeAll(ctx, claims)
			})
			if len(committed) != len(requests) {
				k.Fatalf("%d of %d keys were committed", len(committed), len(requests))
			}
			for i, c := range committed {
				if c.Key != requests[i].Key || c.Owner != requests[i].Owner || c.Attempt != 1 || c.Fence == 0 {
					k.Fatalf("claim %d is %+v, want that of %+v", i, c, requests[i])
				}
				k.effects(c, 1)
				if a := k.claim(k.request(c.Key.ID), dedupstore.Done); a.Fence != c.Fence {
					k.Errorf("Done names fence %d, want that of the run, %d", a.Fence, c.Fence)
				}
			}
		},
	},
	{
		name:  "first/many-are-without-what-is-known",
		why:   "a batch must not run a key that has a record, or that somebody else runs",
		needs: makesFirst,
		test: func(k *inboxKit) {
			k.settle(k.run("3"), finish(succeeded("paid")))
			k.run("5")
			k.makes(k.request("7"), func(ctx context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
				committed, answers := k.makesAll(k.many(10), func(ctx context.Context, claims []dedupstore.Claim) error {
					return k.chargeAll(ctx, claims)
				})
				var ids []string
				for _, c := range committed {
					ids = append(ids, c.Key.ID)
				}
				if want := []string{"0", "1", "2", "4", "6", "8", "9"}; !slices.Equal(ids, want) {
					k.Errorf("%q were committed, want %q", ids, want)
				}
				for i, want := range map[int]dedupstore.Status{
					0: "", 3: dedupstore.Done, 5: dedupstore.Busy, 7: dedupstore.Busy,
				} {
					if got := answers[i].Status; got != want {
						k.Errorf("run %d was answered %q, want %q", i, got, want)
					}
				}
				return k.charge(c)(ctx)
			})
			for _, id := range []string{"3", "5"} {
				k.effects(dedupstore.Claim{Key: k.key(id)}, 0)
			}
			k.effects(dedupstore.Claim{Key: k.key("7")}, 1)
			_, answers := k.makesAll(k.many(3), k.neverAll())
			for _, a := range answers {
				if a.Status != dedupstore.Done {
					k.Errorf("a run that is known was answered %+v", a)
				}
			}
		},
	},
	{
		name:  "first/many-of-one-key-are-one",
		why:   "copies of a message may come in one batch, and only one of them has the effect",
		needs: makesFirst,
		test: func(k *inboxKit) {
			requests := append(k.many(70), k.many(70)...) // also where a statement makes fewer
			requests = append(requests, k.request("3"), k.request("3"))
			committed, _ := k.makesAll(requests, func(ctx context.Context, claims []dedupstore.Claim) error {
				return k.chargeAll(ctx, claims)
			})
			if len(committed) != 70 {
				k.Errorf("%d keys were committed, want 70", len(committed))
			}
			for _, c := range committed {
				k.effects(c, 1)
			}
		},
	},
	{
		name:  "first/many-leave-nothing-after-an-error",
		why:   "each key of a batch that failed runs by itself then, and finds no record and no effect",
		needs: makesFirst,
		test: func(k *inboxKit) {
			refused := errors.New("row 17")
			_, err := k.in.Inbox.InTx(k.Context(), firsts(k.many(5)),
				func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
					return paid(claims), errors.Join(k.chargeAll(ctx, claims), refused)
				})
			if !errors.Is(err, refused) {
				k.Errorf("the batch returned %v, want its error", err)
			}
			for _, r := range k.many(5) {
				k.effects(dedupstore.Claim{Key: r.Key}, 0)
				k.found(k.claim(r, dedupstore.AcquiredRun), dedupstore.Absent)
			}
		},
	},
	{
		name:  "first/requests-are-validated",
		why:   "a run that must leave a trace before it starts, or that supersedes another, needs a claim",
		needs: makesFirst,
		test: func(k *inboxKit) {
			parks, reruns := k.request("1"), k.request("1")
			parks.ParkExpired, reruns.Rerun = true, 1
			for _, r := range []dedupstore.Request{parks, reruns, {}} {
				if _, err := k.first(r, k.never()); !isInvalid(err) {
					k.Errorf("%+v returned %v, want an InvalidError", r, err)
				}
			}
		},
	},
}

func makesFirst(s InboxSubject) bool { return s.Inbox.TakesFirst() }

func isInvalid(err error) bool {
	_, ok := errors.AsType[*dedupstore.InvalidError](err)
	return ok
}

// many are requests for so many keys, "0", "1" and so on.
func (k *inboxKit) many(n int) []dedupstore.Request {
	requests := make([]dedupstore.Request, n)
	for i := range requests {
		requests[i] = k.request(strconv.Itoa(i))
	}
	return requests
}

// chargeAll has the effects of a batch.
func (k *inboxKit) chargeAll(ctx context.Context, claims []dedupstore.Claim) error {
	for _, c := range claims {
		if err := k.in.Effect(ctx, k.name(c.Key)); err != nil {
			return err
		}
	}
	return nil
}

// firsts are first runs of requests.
func firsts(requests []dedupstore.Request) []dedupstore.TxRun {
	runs := make([]dedupstore.TxRun, len(requests))
	for i := range requests {
		runs[i].First = &requests[i]
	}
	return runs
}

// makesAll wants a batch of first runs to be committed. It returns the claims that were, and the answers to the others.
func (k *inboxKit) makesAll(
	requests []dedupstore.Request, w func(context.Context, []dedupstore.Claim) error,
) (committed []dedupstore.Claim, answers []dedupstore.Answer) {
	k.Helper()
	answers, err := k.in.Inbox.InTx(k.Context(), firsts(requests),
		func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			committed = claims
			return paid(claims), w(ctx, claims)
		})
	if err != nil {
		k.Fatalf("a batch of first runs returned %v, want nothing", err)
	}
	apart := 0
	for _, a := range answers {
		if a.Status != "" {
			apart++
		}
	}
	if len(committed)+apart != len(requests) {
		k.Fatalf("%d of %d first runs took part, and %d have an answer", len(committed), len(requests), apart)
	}
	return committed, answers
}

// neverAll is work of a batch that must not be called.
func (k *inboxKit) neverAll() func(context.Context, []dedupstore.Claim) error {
	return func(_ context.Context, claims []dedupstore.Claim) error {
		k.Errorf("the work of %+v was called", claims)
		return nil
	}
}

type firstWork = func(ctx context.Context, c dedupstore.Claim) (dedupstore.Settlement, error)

func (k *inboxKit) first(r dedupstore.Request, w firstWork) (a dedupstore.Answer, err error) {
	answers, err := k.in.Inbox.InTx(k.Context(), []dedupstore.TxRun{{First: &r}},
		func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			s, err := w(ctx, claims[0])
			return []dedupstore.Settlement{s}, err
		})
	if err == nil && answers != nil {
		a = answers[0]
	}
	return a, err
}

// makes wants a first run to be committed.
func (k *inboxKit) makes(r dedupstore.Request, w firstWork) {
	k.Helper()
	called := false
	a, err := k.first(r, func(ctx context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
		called = true
		return w(ctx, c)
	})
	if !called && err == nil {
		k.Fatalf("a first run was answered %s, want its work to be called", a.Status)
	}
	if err != nil || a.Status != "" {
		k.Fatalf("a first run returned %q, %v, want nothing", a.Status, err)
	}
}

// never is work that must not be called.
func (k *inboxKit) never() firstWork {
	return func(_ context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
		k.Errorf("the work of %q was called", c.Key.ID)
		return finish(succeeded("paid")), nil
	}
}

// busy wants a twin that may be the first, too, to be told so, and for how long.
func (k *inboxKit) busy(r dedupstore.Request) {
	k.Helper()
	a, err := k.first(r, k.never())
	if err != nil || a.Status != dedupstore.Busy || a.Wait <= 0 || a.Wait > r.Lease {
		k.Errorf("a twin was answered %q, wait %v, %v, want busy for its lease at most", a.Status, a.Wait, err)
	}
}
