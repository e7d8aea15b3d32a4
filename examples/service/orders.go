package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/examples/internal/bank"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// An order as it is asked for, stored and announced.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

// takeOrders answers POST /orders.
func takeOrders(keys *idempotencykey.Middleware, box *pgoutbox.Outbox) http.Handler {
	guarded := keys.Wrap(place(box))
	room := make(chan struct{}, requests)
	mux := http.NewServeMux()
	// The pattern is part of the names of records: under another one everything would run again.
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		select {
		case room <- struct{}{}:
			defer func() { <-room }()
			guarded.ServeHTTP(w, r)
			box.Wake() // the transaction has been committed
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
		}
	})
	return mux
}

// place writes an order and its event, in the transaction that also keeps the response.
func place(box *pgoutbox.Outbox) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, o := r.Context(), order{}
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Customer == "" || o.Cents <= 0 {
			http.Error(w, `want such as {"customer":"ann","cents":1200}`, http.StatusBadRequest)
			return
		}
		run := oncemill.FromContext(ctx)
		o.ID = run.ID("order") // the same for all repeats
		_, err := pgstore.Tx(ctx).Exec(ctx, `INSERT INTO orders (id, customer, cents) VALUES ($1, $2, $3)`,
			o.ID, o.Customer, o.Cents)
		if err == nil {
			err = publish(ctx, box, placed, run.ID("placed"), o)
		}
		if err != nil {
			slog.ErrorContext(ctx, "the order was not taken", "error", err)
			http.Error(w, "try again", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(o)
	}
}

// publish writes a message into the outbox, in the transaction that ctx carries.
func publish(ctx context.Context, box *pgoutbox.Outbox, topic, id string, o order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return box.Publish(ctx, producer.Message{ID: id, Topic: topic, Key: o.ID, Payload: payload})
}

// charge handles placed orders. The charge, its receipt and the outcome commit together.
func charge(box *pgoutbox.Outbox) func(context.Context, jetstream.Msg) error {
	return func(ctx context.Context, msg jetstream.Msg) error {
		var o order
		if err := json.Unmarshal(msg.Data(), &o); err != nil {
			return oncemill.Permanent(err) // no further attempt helps: a dead letter
		}
		const insert = `INSERT INTO charges ("order", cents) VALUES ($1, $2)`
		if _, err := pgstore.Tx(ctx).Exec(ctx, insert, o.ID, o.Cents); err != nil {
			return err
		}
		return publish(ctx, box, charged, oncemill.FromContext(ctx).ID("receipt"), o)
	}
}

// transfer handles receipts. After a crash it may call the bank once more, with the same key.
func transfer(api *bank.Client) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		var o order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return oncemill.Permanent(err)
		}
		key := oncemill.FromContext(msg.Context()).ID("transfer")
		return api.Transfer(msg.Context(), key, bank.Transfer{Payment: o.ID, Cents: o.Cents})
	}
}
