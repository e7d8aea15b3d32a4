package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// luck is what happens to an order on its way into the database.
type luck string

const (
	fine    luck = "it is taken at once"
	missed  luck = "the client misses the answer, and asks again later"
	doubled luck = "the client asks twice at the same time"
	hungUp  luck = "the client hangs up before the answer, and asks again"
	busy    luck = "the warehouse does not answer: the transaction is rolled back, and the client asks again"
	soldOut luck = "the warehouse has none left: the transaction is rolled back, for good"
)

// A planned order is an order and its luck.
type planned struct {
	shop.Order
	luck     luck
	patience time.Duration // of a client that hangs up
}

// plan draws orders from the seed. The first ones meet every kind of luck, so that a short run does too.
func plan(o options) []planned {
	rng := rand.New(rand.NewPCG(o.seed, 0))
	kinds := []luck{missed, doubled, hungUp, busy, soldOut, fine}
	orders := make([]planned, o.orders)
	for i := range orders {
		what := fine
		if n := rng.IntN(20); n < 5*2 {
			what = kinds[n/2]
		}
		if what == soldOut && rng.IntN(2) == 0 {
			what = fine
		}
		if i < len(kinds) {
			what = kinds[i]
		}
		orders[i] = planned{
			Order:    shop.Order{ID: fmt.Sprintf("order-%d-%05d", o.seed, i), Cents: 100 + rng.IntN(9900)},
			luck:     what,
			patience: time.Duration(500+rng.IntN(3000)) * time.Microsecond,
		}
	}
	return orders
}
