package pgwal_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/pgwal"
	"github.com/oncemill/oncemill/producer"
)

// printer stands for a broker.
type printer struct{}

func (printer) Publish(_ context.Context, messages ...producer.Message) error {
	for _, m := range messages {
		fmt.Printf("%s: %s\n", m.Topic, m.Payload)
	}
	return nil
}

// A service that writes orders and their messages in one transaction, and publishes the messages as they are committed.
func ExampleNew() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	box, err := pgoutbox.New(pool, pgoutbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	relay, err := pgwal.New(pgwal.Config{Pool: pool}, printer{})
	if err != nil {
		log.Fatal(err)
	}
	if err := relay.Setup(ctx); err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// … the business writes its own rows in tx …
		return box.In(tx).Publish(ctx, producer.Message{Topic: "orders.created", Payload: []byte(`{"amount":5}`)})
	})
	if err != nil {
		log.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}
