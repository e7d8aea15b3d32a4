package main

import (
	"fmt"
	"math/rand/v2"
)

// An order is what a customer wants to pay for. Its ID is the message ID from the shop to the ledger.
type order struct {
	ID     string `json:"id"`
	Amount int    `json:"amount"` // cents
}

// A fault is what goes wrong with one order. Each order meets at most one.
type fault string

const (
	noFault        fault = "none"
	producerRetry  fault = "the producer retries after a lost reply"
	twinCopies     fault = "two copies at once"
	relayDies      fault = "the relay dies between publish and mark"
	handlerFails   fault = "the handler fails once"
	ackLost        fault = "the handler dies after its chain returned, before the ack"
	poisonOrder    fault = "a poison order: the handler always fails"
	changedAmount  fault = "re-sent with another amount"
	diesAfterWrite fault = "the handler dies between effect and outcome" // with -crash effect
)

// A plannedOrder is an order and its fate.
type plannedOrder struct {
	order
	fault fault
}

// plan draws orders and their fates from the seed. The first orders meet every fault once, so that a small run does
// too. The run's name is part of the IDs, since a Redis remembers earlier runs.
func plan(run string, o options) []plannedOrder {
	rng := rand.New(rand.NewPCG(o.seed, 0))
	every := []fault{producerRetry, twinCopies, relayDies, handlerFails, ackLost, poisonOrder, changedAmount}
	if o.crashEffect {
		every = append(every, diesAfterWrite)
	}
	planned := make([]plannedOrder, o.orders)
	for i := range planned {
		f := noFault
		switch p := rng.IntN(100); {
		case i < len(every):
			f = every[i]
		case p < 8:
			f = producerRetry
		case p < 16:
			f = twinCopies
		case p < 18:
			f = relayDies
		case p < 28:
			f = handlerFails
		case p < 38:
			f = ackLost
		case p < 39:
			f = poisonOrder
		case p < 40:
			f = changedAmount
		case p < 42 && o.crashEffect:
			f = diesAfterWrite
		}
		planned[i] = plannedOrder{order{ID: fmt.Sprintf("%s-%05d", run, i), Amount: 100 + rng.IntN(9900)}, f}
	}
	return planned
}
