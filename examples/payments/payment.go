package main

import (
	"encoding/json"
	"errors"
	"fmt"
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

// limit is the most that may be paid at once. The ledger says so, not the service: a payment above it is taken, and fails.
const limit = 1_000_000

var errOverLimit = fmt.Errorf("more than %d cents at once", limit)

func parsePayment(text []byte) (payment, error) {
	var p payment
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("this is not a payment: %w", err)
	}
	for _, field := range []struct{ name, value string }{{"id", p.ID}, {"account", p.Account}, {"merchant", p.Merchant}} {
		if !name.MatchString(field.value) {
			return p, fmt.Errorf("%s is %q, want up to 64 letters, digits, - and _", field.name, field.value)
		}
	}
	if p.Cents <= 0 {
		return p, fmt.Errorf("cents is %d, want more than 0", p.Cents)
	}
	if p.Account == p.Merchant {
		return p, errors.New("account and merchant are the same")
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
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // a string and a number
	}
	return producer.Message{ID: id, Topic: topic, Key: r.Payment, Payload: b}
}
