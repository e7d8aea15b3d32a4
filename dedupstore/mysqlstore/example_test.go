package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
)

// A charge is booked in the transaction that records its outcome.
func ExampleStore_Inbox() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "shop:secret@tcp(db:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	store, err := mysqlstore.New(db, mysqlstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	guard, err := oncemill.NewGuard(store.Inbox(), oncemill.HighValue())
	if err != nil {
		log.Fatal(err)
	}
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "order-7"}}
	res, err := guard.Run(ctx, call, func(ctx context.Context) (dedupstore.Outcome, error) {
		const query = `UPDATE accounts SET balance = balance - 1250 WHERE id = 'customer-7'`
		_, err := mysqlstore.Tx(ctx).ExecContext(ctx, query)
		return dedupstore.Outcome{}, err
	})
	fmt.Println(res.Outcome.Kind, res.Duplicate, err)
}
