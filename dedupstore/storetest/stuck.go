package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

const (
	// promptly is how long operations may take beside one that is stuck: far more than a quiet machine needs, and far
	// less than the fault lasts, which ends after them.
	promptly = 30 * time.Second

	// vanishedFor is how long a host that has vanished may keep a record from others: a promise of the contract.
	vanishedFor = time.Minute
)

var stuckCases = []testCase{
	{
		name:  "stuck/locked-record",
		why:   "if one process stands still in a transaction, every other message of a batch loses its outcome",
		needs: func(s Subject) bool { return s.Lock != nil },
		test: func(k *kit) {
			settlings, extensions := k.running(20)
			release := k.Lock(settlings[7].Claim.Key)
			defer release()
			k.beside(7, "an extension", func(ctx context.Context) []error { return k.Store.Extend(ctx, extensions) })
			stored := k.beside(7, "a settlement", func(ctx context.Context) []error {
				return k.Store.Settle(ctx, settlings)
			})
			requests := k.requests(numbered(20)...)
			for i, a := range k.quickly(requests) {
				if want := dedupstore.Done; i != 7 && a.Status != want || i == 7 && a.Status != dedupstore.Busy {
					k.Errorf("claim %d was answered %s; want %s, and Busy for the locked record, 7", i, a.Status, want)
				}
			}
			release()
			if !stored {
				k.settlesAtLast(settlings[7])
			}
			k.claim(k.request("7"), dedupstore.Done)
		},
	},
	{
		name:  "stuck/locked-after-its-lease",
		why:   "a takeover has to change a record that somebody has locked: it must neither wait nor take it for absent",
		needs: func(s Subject) bool { return s.Lock != nil },
		test: func(k *kit) {
			c := k.crashed("1")
			release := k.Lock(c.Key)
			defer release()
			for i, a := range k.quickly(k.requests("0", "1", "2")) {
				if want := dedupstore.AcquiredRun; i != 1 && a.Status != want || i == 1 && a.Status != dedupstore.Busy {
					k.Errorf("claim %d was answered %s; want %s, and Busy for the locked record, 1", i, a.Status, want)
				}
			}
			release()
			if next := k.ask(k.request("1")); next.Status != dedupstore.AcquiredRun || next.Claim.Fence <= c.Fence {
				k.Errorf("after the lock a claim was answered %s, fence %d, want a run with a fence above %d",
					next.Status, next.Claim.Fence, c.Fence)
			}
		},
	},
	{
		name:  "stuck/record-that-is-being-made",
		why:   "a claim that hangs in its commit must hold up its own duplicates only",
		needs: func(s Subject) bool { return s.Lock != nil },
		test: func(k *kit) {
			release := k.Lock(k.key("1"))
			defer release()
			for i, a := range k.quickly(k.requests("0", "1", "2")) {
				if want := dedupstore.AcquiredRun; i != 1 && a.Status != want || i == 1 && a.Status != dedupstore.Busy {
					k.Errorf("claim %d was answered %s; want %s, and Busy for the one that is being made, 1", i,
						a.Status, want)
				}
			}
			release()
			k.claim(k.request("1"), dedupstore.AcquiredRun)
		},
	},
	{
		name:  "stuck/late-answer-to-a-commit",
		why:   "a server that answers one commit late must hold up neither its caller, whose time is over, nor others",
		needs: func(s Subject) bool { return s.Stall != nil },
		test: func(k *kit) {
			settlings, _ := k.running(2)
			over := k.Stall(true)
			defer over()
			k.givesUp(settlings[0])
			ctx, cancel := context.WithTimeout(k.Context(), promptly)
			defer cancel()
			if err := dedupstore.SettleOne(ctx, k.Store, settlings[1].Claim, settlings[1].Settlement); err != nil {
				k.Errorf("another settlement beside it returned %v", err)
			}
			over()
			k.settlesAtLast(settlings[0])
			k.claim(k.request("0"), dedupstore.Done)
		},
	},
	{
		name:  "stuck/vanished-host",
		why:   "a host that vanishes in a transaction would keep its records locked until the server gives it up, in hours",
		needs: func(s Subject) bool { return s.Stall != nil },
		test: func(k *kit) {
			r := k.request("1")
			r.Lease = 3 * time.Second
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			over := k.Stall(false)
			defer over()
			k.givesUp(dedupstore.Settling{Claim: c, Settlement: finish(succeeded("paid"))})
			for began := time.Now(); ; <-time.After(moments) {
				a := k.ask(k.request("1"))
				if a.Status == dedupstore.AcquiredRun {
					return
				}
				if a.Status != dedupstore.Busy || time.Since(began) > vanishedFor {
					k.Fatalf("after %v a claim was answered %s, want a takeover within %v", time.Since(began), a.Status,
						vanishedFor)
				}
			}
		},
	},
}

// running claims so many runs, and returns how to end and to renew them.
func (k *kit) running(n int) (settlings []dedupstore.Settling, extensions []dedupstore.Extension) {
	k.Helper()
	for _, a := range k.claimMany(k.requests(numbered(n)...), dedupstore.AcquiredRun) {
		settlings = append(settlings, dedupstore.Settling{Claim: a.Claim, Settlement: finish(succeeded("paid"))})
		extensions = append(extensions, dedupstore.Extension{Claim: a.Claim, Lease: long, Started: true})
	}
	return settlings, extensions
}

// beside makes a batch with one operation that is stuck, and wants the others to be made. It reports whether the stuck
// one was made, too.
func (k *kit) beside(stuck int, what string, do func(context.Context) []error) (made bool) {
	k.Helper()
	errs := timed(k, do)
	for i, err := range errs {
		switch {
		case i == stuck && errors.Is(err, dedupstore.ErrClaimLost):
			k.Errorf("%s of a locked record returned %v, although nobody took over", what, err)
		case i != stuck && err != nil:
			k.Errorf("%s beside a locked record, %d, returned %v", what, i, err)
		}
	}
	return errs[stuck] == nil
}

// quickly claims beside something that is stuck.
func (k *kit) quickly(requests []dedupstore.Request) []dedupstore.Answer {
	k.Helper()
	answers := make([]dedupstore.Answer, len(requests))
	for i, r := range timed(k, func(ctx context.Context) []dedupstore.ClaimResult { return k.Store.Claim(ctx, requests) }) {
		if answers[i] = r.Answer; r.Err != nil {
			k.Errorf("claim %d returned %v", i, r.Err)
		}
	}
	return answers
}

// timed wants a batch not to wait for what is stuck.
func timed[T any](k *kit, do func(context.Context) []T) []T {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), 2*promptly)
	defer cancel()
	began := time.Now()
	results := do(ctx)
	if took := time.Since(began); took > promptly {
		k.Errorf("a batch of which one operation is stuck took %v, want at most %v", took, promptly)
	}
	return results
}

// givesUp wants a settlement that is stalled to end when its context does.
func (k *kit) givesUp(x dedupstore.Settling) {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), time.Second)
	defer cancel()
	began := time.Now()
	err := dedupstore.SettleOne(ctx, k.Store, x.Claim, x.Settlement)
	if took := time.Since(began); took > promptly {
		k.Errorf("a settlement with a deadline of a second returned after %v", took)
	}
	if err == nil || errors.Is(err, dedupstore.ErrClaimLost) {
		k.Errorf("a settlement that got no answer returned %v, want the end of its context", err)
	}
}

// settlesAtLast settles again and again until nothing stands in the way.
func (k *kit) settlesAtLast(x dedupstore.Settling) {
	k.Helper()
	var err error
	for end := time.Now().Add(waitLimit); time.Now().Before(end); <-time.After(moments) {
		err = dedupstore.SettleOne(k.Context(), k.Store, x.Claim, x.Settlement)
		if err == nil || errors.Is(err, dedupstore.ErrClaimLost) {
			break
		}
	}
	if err != nil {
		k.Fatal(fmt.Errorf("when the lock was gone, a settlement returned %w", err))
	}
}
