package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

const (
	crowd = 500

	// renewals is how often a lease is renewed while duplicates ask for its key.
	renewals = 200
)

var concurrencyCases = []testCase{
	{
		name: "concurrency/one-run-of-many-claimers",
		why:  "a check and a claim in two steps let two copies of a message pass the check",
		test: func(k *kit) {
			k.race(crowd, func(int) dedupstore.Request { return k.request("1") },
				map[dedupstore.Status]int{dedupstore.AcquiredRun: 1, dedupstore.Busy: crowd - 1})
		},
	},
	{
		name: "concurrency/one-takeover-of-a-crashed-run",
		why:  "redeliveries after a crash come together",
		test: func(k *kit) {
			k.crashed("1")
			k.race(crowd, func(int) dedupstore.Request { return k.request("1") },
				map[dedupstore.Status]int{dedupstore.AcquiredRun: 1, dedupstore.Busy: crowd - 1})
		},
	},
	{
		name: "concurrency/one-retry-of-a-released-run",
		why:  "copies that were held back come together when the retry is due",
		test: func(k *kit) {
			k.settle(k.run("1"), dedupstore.Release{})
			k.race(crowd, func(int) dedupstore.Request { return k.request("1") },
				map[dedupstore.Status]int{dedupstore.AcquiredRun: 1, dedupstore.Busy: crowd - 1})
		},
	},
	{
		name: "concurrency/one-dead-letter",
		why:  "of all who find the attempts spent one sends the dead letter",
		test: func(k *kit) {
			k.crashed("1")
			k.race(crowd, func(int) dedupstore.Request {
				r := k.request("1")
				r.MaxAttempts = 1
				return r
			}, map[dedupstore.Status]int{dedupstore.AcquiredPublish: 1, dedupstore.Busy: crowd - 1})
		},
	},
	{
		name: "concurrency/one-publisher",
		why:  "of all who find a publish step without an owner one publishes",
		test: func(k *kit) {
			k.settle(k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim, finishTo(succeeded(""), receipt))
			k.pass(short)
			k.race(crowd, func(int) dedupstore.Request { return k.request("1") },
				map[dedupstore.Status]int{dedupstore.AcquiredPublish: 1, dedupstore.Busy: crowd - 1})
		},
	},
	{
		name: "concurrency/one-rerun",
		why:  "a request to run a failure again may be delivered more than once",
		test: func(k *kit) {
			fence := k.failure(failed("card refused"))
			k.race(crowd, func(int) dedupstore.Request { return k.rerun(fence) },
				map[dedupstore.Status]int{dedupstore.AcquiredRun: 1, dedupstore.Busy: crowd - 1})
		},
	},
	{
		name: "concurrency/one-owner-asking-at-once",
		why:  "clients send a claim again while the first copy is still under way",
		test: func(k *kit) {
			r := k.request("1")
			answers := k.race(50, func(int) dedupstore.Request { return r },
				map[dedupstore.Status]int{dedupstore.AcquiredRun: 50})
			for _, a := range answers {
				if a.Claim != answers[0].Claim || a.Claim.Attempt != 1 {
					k.Fatalf("one owner got the claims %+v and %+v, want one, of attempt 1", answers[0].Claim, a.Claim)
				}
			}
		},
	},
	{
		name: "concurrency/keys-do-not-wait-for-each-other",
		why:  "different keys are different messages",
		test: func(k *kit) {
			k.race(crowd, func(i int) dedupstore.Request { return k.request(fmt.Sprint(i)) },
				map[dedupstore.Status]int{dedupstore.AcquiredRun: crowd})
		},
	},
	{
		name: "concurrency/finish-against-takeover",
		why:  "a late finish and a takeover at the same moment: one of them wins, and both learn which",
		test: func(k *kit) {
			const keys = 100
			dead := make([]dedupstore.Claim, keys)
			for i := range dead {
				dead[i] = k.claim(k.brief(fmt.Sprint(i)), dedupstore.AcquiredRun).Claim
			}
			k.pass(short)
			answers, errs := make([]dedupstore.Answer, keys), make([][2]error, keys)
			var group sync.WaitGroup
			for i := range dead {
				group.Go(func() {
					errs[i][0] = dedupstore.SettleOne(k.Context(), k.Store, dead[i], finish(succeeded("")))
				})
				group.Go(func() {
					for end := time.Now().Add(waitLimit); time.Now().Before(end); {
						answers[i], errs[i][1] = k.patient(k.request(fmt.Sprint(i)), moments)
						if errs[i][1] != nil || answers[i].Status != dedupstore.Busy {
							return // else the finish has the record locked
						}
					}
				})
			}
			group.Wait()
			for i, a := range answers {
				if errs[i][1] != nil {
					k.Errorf("claim: %v", errs[i][1])
					continue
				}
				switch {
				case a.Status == dedupstore.Done && errs[i][0] == nil:
				case a.Status == dedupstore.AcquiredRun:
					k.lost(errs[i][0], "finish beside a takeover")
				default:
					k.Errorf("the finish returned %v and the claim was answered %s", errs[i][0], a.Status)
				}
			}
		},
	},
	{
		name: "concurrency/repeated-settles-at-once",
		why:  "clients send a settle again while the first copy is still under way",
		test: func(k *kit) {
			c := k.run("1")
			errs := make([]error, 50)
			var group sync.WaitGroup
			for i := range errs {
				group.Go(func() {
					for range 100 { // others may have the record locked; it is sent again then, as from a guard
						errs[i] = dedupstore.SettleOne(k.Context(), k.Store, c, finish(succeeded("paid")))
						if errs[i] == nil || errors.Is(errs[i], dedupstore.ErrClaimLost) {
							return
						}
					}
				})
			}
			group.Wait()
			for _, err := range errs {
				if err != nil {
					k.Fatalf("a copy of the finish returned %v, want nil for each in the end", err)
				}
			}
			k.sameOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, succeeded("paid"))
		},
	},
	{
		name: "concurrency/duplicates-beside-renewals",
		why:  "duplicates that ask without end must not cost the holder its lease",
		test: func(k *kit) {
			c := k.run("1")
			ctx, stop := context.WithCancel(k.Context())
			defer stop()
			var group sync.WaitGroup
			for range 50 {
				group.Go(func() {
					for ctx.Err() == nil {
						a, err := dedupstore.ClaimOne(ctx, k.Store, k.request("1"))
						if err == nil && a.Status != dedupstore.Busy {
							k.Errorf("a duplicate was answered %s while the lease lived", a.Status)
							return
						}
						<-time.After(time.Millisecond)
					}
				})
			}
			renewed := 0
			for range renewals {
				switch err := k.tryExtend(c, long); {
				case err == nil:
					renewed++
				case errors.Is(err, dedupstore.ErrClaimLost):
					k.Errorf("a renewal beside duplicates returned %v", err)
				}
				<-time.After(time.Millisecond)
			}
			if renewed < renewals/10 {
				k.Errorf("%d of %d renewals beside duplicates came through, want at least a tenth", renewed, renewals)
			}
			stop()
			group.Wait()
			k.settle(c, finish(succeeded("paid")))
		},
	},
}

// race sends n claims at once, wants their answers to be distributed like that, and returns them.
func (k *kit) race(n int, request func(i int) dedupstore.Request, want map[dedupstore.Status]int) []dedupstore.Answer {
	k.Helper()
	requests := make([]dedupstore.Request, n)
	for i := range requests {
		requests[i] = request(i)
	}
	answers, errs := make([]dedupstore.Answer, n), make([]error, n)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			<-start
			answers[i], errs[i] = k.patient(requests[i], requests[i].Lease)
		})
	}
	close(start)
	group.Wait()
	got := map[dedupstore.Status]int{}
	for i, a := range answers {
		if errs[i] != nil {
			k.Fatalf("claim: %v", errs[i])
		}
		got[a.Status]++
	}
	if !maps.Equal(got, want) {
		k.Fatalf("%d claims at once were answered %v, want %v", n, got, want)
	}
	return answers
}
