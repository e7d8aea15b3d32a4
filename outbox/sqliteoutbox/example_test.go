package sqliteoutbox_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

func ExampleNew() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	db, err := sqliteoutbox.Open(ctx, filepath.Join(folder, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	for _, commit := range []bool{true, false} {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			log.Fatal(err)
		}
		// … the business writes its own rows in tx …
		if err := box.InSQL(tx).Publish(ctx, producer.Message{Topic: "orders.created", Payload: []byte(`{"amount":5}`)}); err != nil {
			log.Fatal(err)
		}
		if commit {
			err = tx.Commit()
		} else {
			err = tx.Rollback()
		}
		if err != nil {
			log.Fatal(err)
		}
		box.Wake() // a relay publishes now what was committed
	}

	stats, err := box.Stats(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(stats.Pending, "row to publish")
	// Output: 1 row to publish
}

func ExampleOpen() {
	folder, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	db, err := sqliteoutbox.Open(context.Background(), filepath.Join(folder, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	var mode string
	if err := db.QueryRow("PRAGMA journal_mode").Scan(&mode); err != nil {
		log.Fatal(err)
	}
	fmt.Println("journal mode", mode)
	// Output: journal mode wal
}

func ExampleOutbox_Requeue() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	db, err := sqliteoutbox.Open(ctx, filepath.Join(folder, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	// Once the reason is gone for which the broker refused them, dead rows are published again.
	dead, err := box.List(ctx, outbox.Filter{States: []outbox.State{outbox.Dead}}, "") // the first page
	if err != nil {
		log.Fatal(err)
	}
	for _, row := range dead.Rows {
		fmt.Println(row.ID, row.Error)
		if _, err := box.Requeue(ctx, outbox.RowInfo{ID: row.ID}); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(len(dead.Rows), "dead rows")
	// Output: 0 dead rows
}

// printer is a publisher for examples. A real one belongs to a broker.
type printer struct{ done func() }

func (p printer) Publish(_ context.Context, messages ...producer.Message) error {
	for _, m := range messages {
		fmt.Println("published", m.ID, "to", m.Topic)
	}
	p.done()
	return nil
}

func Example_relay() {
	folder, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	ctx, cancel := context.WithCancel(context.Background())
	db, err := sqliteoutbox.Open(ctx, filepath.Join(folder, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	// … the business writes its own rows in tx …
	if err := box.InSQL(tx).Publish(ctx, producer.Message{ID: "order-1", Topic: "orders.created"}); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	box.Wake()

	relay, err := outbox.NewRelay(box, printer{done: cancel}, outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := relay.Run(ctx); err != nil { // until ctx ends, here after the first batch
		log.Fatal(err)
	}
	// Output: published order-1 to orders.created
}
