package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// luck is what happens to a payment on its way.
type luck string

const (
	fine     luck = "it is sent once"
	missed   luck = "the client misses the answer, and asks again later"
	doubled  luck = "the client asks twice at the same time"
	hungUp   luck = "the client hangs up before the answer, and asks again"
	repeated luck = "somebody publishes its message once more"
	late     luck = "somebody publishes its message once more, much later"
	declined luck = "it is over the limit"
)

// A planned payment is a payment and its luck.
type planned struct {
	payment
	luck     luck
	patience time.Duration // of a client that hangs up
}

// Accounts are few, so that payments meet in them.
const (
	customers = 40
	merchants = 8
)

// plan draws payments from the seed. The first ones meet every kind of luck, so that a short run does too. Beside this plan,
// one in ten acknowledgements is lost on its way, to relays and from consumers.
func plan(o options) []planned {
	rng := rand.New(rand.NewPCG(o.seed, 0))
	kinds := []luck{missed, doubled, hungUp, repeated, late, declined, fine}
	all := make([]planned, o.payments)
	for i := range all {
		what := fine
		switch n := rng.IntN(100); {
		case n < 15:
			what = kinds[n%3] // clients
		case n < 25:
			what = repeated
		case n < 30:
			what = late
		case n < 33:
			what = declined
		}
		if i < len(kinds) {
			what = kinds[i]
		}
		cents := int64(100 + rng.IntN(9900))
		if what == declined {
			cents += limit
		}
		all[i] = planned{
			payment: payment{
				ID:       fmt.Sprintf("%s-%d-%06d", o.run, o.seed, i),
				Account:  fmt.Sprintf("customer-%02d", rng.IntN(customers)),
				Merchant: fmt.Sprintf("merchant-%d", rng.IntN(merchants)),
				Cents:    cents,
			},
			luck:     what,
			patience: time.Duration(500+rng.IntN(3000)) * time.Microsecond,
		}
	}
	return all
}

// balances are what accounts must have in the end.
func balances(all []planned) map[string]int64 {
	sums := map[string]int64{}
	for _, p := range all {
		if p.luck != declined {
			sums[p.Account] -= p.Cents
			sums[p.Merchant] += p.Cents
		}
	}
	return sums
}
