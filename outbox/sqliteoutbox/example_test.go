package sqliteoutbox_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

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
	dead, err := box.Dead(ctx, 100)
	if err != nil {
		log.Fatal(err)
	}
	for _, row := range dead {
		fmt.Println(row.ID, row.Error)
		if _, err := box.Requeue(ctx, row.ID); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(len(dead), "dead rows")
	// Output: 0 dead rows
}
