package pgoutbox_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

func ExampleNew() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
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
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (number, amount) VALUES (4711, 5)`); err != nil {
			return err
		}
		return box.In(tx).Publish(ctx, producer.Message{
			ID: producer.DeriveID("orders", "4711"), Topic: "orders.created", Payload: []byte(`{"amount":5}`),
		})
	})
	if err != nil {
		log.Fatal(err)
	}
	box.Wake() // a relay of this process publishes now what was committed
}

func ExampleOutbox_Listen() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	box, err := pgoutbox.New(pool, pgoutbox.Config{})
	if err != nil {
		log.Fatal(err)
	}

	// In the process of the relay. Writers call Notify after the commit.
	ended := make(chan error)
	go func() { ended <- box.Listen(ctx) }()
	// … relay.Run(ctx) …
	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}
