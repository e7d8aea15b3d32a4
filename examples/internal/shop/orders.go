package shop

import (
	"encoding/json"
	"fmt"
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
