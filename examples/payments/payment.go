package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"

	"github.com/oncemill/oncemill/producer"
)

// A payment is what a client asks for.
type payment struct {
	ID       string `json:"id"` // the client's, which repeats it until it has an answer
	Account  string `json:"account"`
	Merchant string `json:"merchant"`
	Cents    int64  `json:"cents"`
}

// JSON is the payment as it travels: equal payments are equal bytes.
func (p payment) JSON() []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and a number
	}
	return b
}

var name = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// limit is the most that may be paid at once. The ledger says so, not the service: a payment above it is taken, and
// fails.
const limit = 1_000_000

var errOverLimit = fmt.Errorf("more than %d cents at once", limit)

func parsePayment(text []byte) (p payment, err error) {
	switch err := json.Unmarshal(text, &p); {
	case err != nil:
		return p, fmt.Errorf("this is not a payment: %w", err)
	case !name.MatchString(p.ID) || !name.MatchString(p.Account) || !name.MatchString(p.Merchant):
		return p, errors.New("want id, account and merchant of up to 64 letters, digits, - and _")
	case p.Cents <= 0 || p.Account == p.Merchant:
		return p, errors.New("want more than 0 cents, from an account to another one")
	}
	return p, nil
}

// event announces a payment, under the ID that the client gave it.
func (p payment) event(topic string) producer.Message {
	return producer.Message{ID: p.ID, Topic: topic, Key: p.Account, Payload: p.JSON()}
}

// A receipt says that a payment is booked.
type receipt struct {
	Payment string `json:"payment"`
	Cents   int64  `json:"cents"`
}

// message is the receipt of one run of charge.
func (r receipt) message(id, topic string) producer.Message {
	payload := fmt.Appendf(nil, `{"payment":%q,"cents":%d}`, r.Payment, r.Cents)
	return producer.Message{ID: id, Topic: topic, Key: r.Payment, Payload: payload}
}

// luck is what happens to a payment on its way.
type luck string

const (
	fine     luck = "it is sent once"
	doubled  luck = "the client asks twice at the same time"
	hungUp   luck = "the client hangs up before the answer, and asks again"
	repeated luck = "somebody publishes its message once more"
	declined luck = "it is over the limit"
)

// A planned payment is a payment and its luck.
type planned struct {
	payment
	luck luck
}

// plan draws payments from the seed. The first ones meet every kind of luck, so that a short run does too. Accounts are
// few, so that payments meet in them. Beside this plan, one in ten acknowledgements is lost on its way, to relays and
// from consumers.
func plan(o options) []planned {
	rng := rand.New(rand.NewPCG(o.Seed, 0))
	kinds := []luck{doubled, hungUp, repeated, declined}
	all := make([]planned, o.Payments)
	for i := range all {
		p := planned{payment{
			ID:       fmt.Sprintf("%s-%d-%06d", o.Run, o.Seed, i),
			Account:  fmt.Sprintf("customer-%02d", rng.IntN(40)),
			Merchant: fmt.Sprintf("merchant-%d", rng.IntN(8)),
			Cents:    int64(100 + rng.IntN(9900)),
		}, fine}
		switch n := rng.IntN(100); {
		case i < len(kinds):
			p.luck = kinds[i]
		case n < 15:
			p.luck = kinds[n%2] // clients
		case n < 30:
			p.luck = repeated
		case n < 33:
			p.luck = declined
		}
		if p.luck == declined {
			p.Cents += limit
		}
		all[i] = p
	}
	return all
}
