package shop

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

// An Order is what a customer wants to pay for.
type Order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

// JSON is the order as it travels.
func (o Order) JSON() []byte {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // a string and a number
	}
	return b
}

// ParseOrder reads what JSON wrote.
func ParseOrder(payload []byte) (Order, error) {
	var o Order
	if err := json.Unmarshal(payload, &o); err != nil {
		return o, fmt.Errorf("this is not an order: %w", err)
	}
	return o, nil
}

// luck is what happens to an order on its way to the consumer.
type luck string

const (
	fine    luck = "it is published once"
	retried luck = "the producer publishes it again, because it missed the acknowledgement"
	relayed luck = "a relay repeats it"
)

// A planned order is an order and its luck.
type planned struct {
	Order
	luck luck
}

// plan draws orders from the seed. Their IDs begin with the name of the run, since Redis and brokers remember earlier
// runs. The first orders meet every kind of luck, so that a short run does too.
func plan(o Options) []planned {
	rng := rand.New(rand.NewPCG(o.Seed, 0))
	orders := make([]planned, o.Orders)
	for i := range orders {
		what := [10]luck{retried, relayed, fine, fine, fine, fine, fine, fine, fine, fine}[rng.IntN(10)]
		if i < 3 {
			what = [3]luck{retried, relayed, fine}[i]
		}
		orders[i] = planned{Order{fmt.Sprintf("%s-%d-%05d", o.Run, o.Seed, i), 100 + rng.IntN(9900)}, what}
	}
	return orders
}

// pace is the time between two orders.
const pace = 4 * time.Millisecond

// retryDelay is when a producer that missed an acknowledgement publishes again. Brokers have windows of their own in
// which they drop repetitions; in the examples they are shorter than this, as in production they are shorter than the
// retries of people, phones and outboxes.
const retryDelay = 400 * time.Millisecond
