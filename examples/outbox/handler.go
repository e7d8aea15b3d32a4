package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// placing writes an order and its event, both or neither. It reports false for an order that is there already. After an
// error, whoever wants the order has to ask again.
type placing func(ctx context.Context, o shop.Order) (placed bool, err error)

// What placing can answer beside errors of the database.
var (
	errSoldOut = errors.New("sold out")                                // asking again is useless
	errOther   = errors.New("the ID belongs to an order that differs") // asking again is useless
)

// event announces an order. Its ID follows from the order, so that a repeated request means the same message.
func event(topic string, o shop.Order) producer.Message {
	return producer.Message{
		ID:      producer.DeriveID("shop/orders", o.ID, "placed"),
		Topic:   topic,
		Key:     o.ID, // on Kafka, messages with one key are in one partition
		Payload: o.JSON(),
	}
}

// handler takes orders: POST /orders with {"id": "…", "cents": 1200}. The ID is the client's, which repeats the request
// until it has an answer below 500.
func handler(place placing) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		o, err := readOrder(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			answer(w, http.StatusBadRequest, err.Error())
			return
		}
		placed, err := place(r.Context(), o)
		switch {
		case errors.Is(err, errSoldOut):
			answer(w, http.StatusUnprocessableEntity, err.Error())
		case errors.Is(err, errOther):
			answer(w, http.StatusConflict, err.Error())
		case err != nil:
			slog.WarnContext(r.Context(), "order was not placed", "id", o.ID, "error", err)
			w.Header().Set("Retry-After", "1")
			answer(w, http.StatusServiceUnavailable, "try again")
		case placed:
			answer(w, http.StatusCreated, "placed")
		default:
			answer(w, http.StatusOK, "placed before")
		}
	})
	return mux
}

const maxBody = 64 << 10

var orderID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func readOrder(body io.Reader) (shop.Order, error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return shop.Order{}, err
	}
	o, err := shop.ParseOrder(text)
	switch {
	case err != nil:
		return o, err
	case !orderID.MatchString(o.ID):
		return o, fmt.Errorf("id is %q, want up to 64 letters, digits, - and _", o.ID)
	case o.Cents <= 0:
		return o, fmt.Errorf("cents is %d, want more than 0", o.Cents)
	}
	return o, nil
}

// answer writes a small JSON object. A client that is gone asks again.
func answer(w http.ResponseWriter, status int, says string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"says": says})
}
