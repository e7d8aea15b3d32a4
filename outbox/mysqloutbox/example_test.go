package mysqloutbox_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/producer"
)

func ExampleNew() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "shop:secret@tcp(db:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	box, err := mysqloutbox.New(db, mysqloutbox.Config{})
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
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	// … INSERT INTO orders …
	order := producer.Message{ID: producer.DeriveID("orders", "4711"), Topic: "orders.created", Payload: []byte("{}")}
	if err := box.InSQL(tx).Publish(ctx, order); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	box.Wake() // a relay of this process publishes now what was committed
}
