package main

import (
	"context"
	"net/http"
	"regexp"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// placing writes an order and its event, both or neither. It reports false for an order that is there already. After an
// error, whoever wants the order has to ask again.
type placing func(ctx context.Context, o shop.Order) (placed bool, err error)

// What placing can answer beside errors of the database. Asking again is useless.
var (
	errSoldOut = shop.Refusal{Status: http.StatusUnprocessableEntity, Text: "sold out"}
	errOther   = shop.Refusal{Status: http.StatusConflict, Text: "the ID belongs to an order that differs"}
)

// event announces an order. Its ID follows from the order, so that a repeated request means the same message.
func event(topic string, o shop.Order) producer.Message {
	return producer.Message{
		ID:      producer.DeriveID("shop/orders", o.ID, "placed"),
		Topic:   topic,
		Key:     o.ID,
		Payload: o.JSON(),
	}
}

// handler takes orders: POST /orders with {"id": "…", "cents": 1200}. The ID is the client's, which repeats the request
// until it has an answer below 500.
func handler(place placing) http.Handler {
	return shop.Taking("POST /orders", func(ctx context.Context, body []byte) (placed bool, err error) {
		o, err := shop.ParseOrder(body)
		if err != nil || !orderID.MatchString(o.ID) || o.Cents <= 0 {
			return false, shop.Refusal{Status: http.StatusBadRequest, Text: `want such as {"id":"4711","cents":1200}`}
		}
		return place(ctx, o)
	})
}

var orderID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// A service takes orders, and publishes their events.
type service struct {
	db        *database
	place     placing
	publisher producer.Publisher
}

// relay publishes the events of the outbox until ctx ends, and then drains.
func (s *service) relay(ctx context.Context) error {
	r, err := outbox.NewRelay(s.db.Box, s.publisher, outbox.Config{
		Backoff: oncemill.Backoff{Min: 300 * time.Millisecond}, // the default is 1 s
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
