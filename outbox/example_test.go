package outbox_test

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

// printer is a publisher for examples. A real one belongs to a broker.
type printer struct{ done func() }

func (p printer) Publish(_ context.Context, messages ...producer.Message) error {
	for _, m := range messages {
		fmt.Println("published", m.ID, "to", m.Topic)
	}
	p.done()
	return nil
}

func ExampleNewRelay() {
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
