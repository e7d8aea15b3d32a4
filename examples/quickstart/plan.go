package main

import (
	"fmt"
	"math/rand/v2"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// A fault is what goes wrong with one order. Each order meets at most one.
type fault string

const (
	producerRetry  fault = "the producer retries after a lost reply"
	twinCopies     fault = "two copies at once"
	ackOfRelay     fault = "the relay loses the acknowledgement of its publish"
	handlerFails   fault = "the handler fails once"
	ackLost        fault = "the handler dies after its chain returned, before the ack"
	poisonOrder    fault = "a poison order: the handler always fails"
	changedAmount  fault = "re-sent with another amount"
	diesAfterWrite fault = "the handler dies between effect and outcome" // with -crash effect
)

// faults are what goes wrong, and with how many of a hundred orders.
var faults = []struct {
	fault
	percent int
}{
	{producerRetry, 8}, {twinCopies, 8}, {ackOfRelay, 2}, {handlerFails, 10}, {ackLost, 10}, {poisonOrder, 1},
	{changedAmount, 1}, {diesAfterWrite, 2},
}

// A plannedOrder is an order and its fate. The order's ID is the message ID from the shop to the ledger.
type plannedOrder struct {
	shop.Order
	fault fault // empty: none
}

// plan draws orders and their fates from the seed. The first orders meet every fault once, so that a small run does
// too. The run's name is part of the IDs, so that two runs are not mixed up.
func plan(run string, o options) []plannedOrder {
	rng := rand.New(rand.NewPCG(o.seed, 0))
	possible := faults
	if o.crash == "" {
		possible = faults[:len(faults)-1]
	}
	planned := make([]plannedOrder, o.orders)
	for i := range planned {
		p := plannedOrder{Order: shop.Order{ID: fmt.Sprintf("%s-%05d", run, i), Cents: 100 + rng.IntN(9900)}}
		n := rng.IntN(100)
		for kind, f := range possible {
			if i == kind || i >= len(possible) && n >= 0 && n < f.percent {
				p.fault = f.fault
			}
			n -= f.percent
		}
		planned[i] = p
	}
	return planned
}
