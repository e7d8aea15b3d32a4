package pgstore_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
)

// A charge is booked in the transaction that records its outcome.
func ExampleStore_Inbox() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	store, err := pgstore.New(pool, pgstore.Config{Isolation: pgx.Serializable})
	if err == nil {
		err = store.Migrate(ctx)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	guard, err := oncemill.NewGuard(store.Inbox(), oncemill.HighValue())
	if err != nil {
		fmt.Println(err)
		return
	}
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "order-7"}}
	res, err := guard.Run(ctx, call, func(ctx context.Context) (dedupstore.Outcome, error) {
		_, err := pgstore.Tx(ctx).Exec(ctx, `UPDATE accounts SET balance = balance - 1250 WHERE id = 'customer-7'`)
		return dedupstore.Outcome{}, err
	})
	fmt.Println(res.Outcome.Kind, res.Duplicate, err)
}

// A handler that has a transaction of its own settles in it.
func ExampleStore_Join() {
	var (
		ctx   context.Context
		pool  *pgxpool.Pool
		store *pgstore.Store
		guard *oncemill.Guard // over store itself
		call  oncemill.Call
	)
	if guard == nil {
		return // see ExampleStore_Inbox for how they are made
	}
	_, err := guard.Run(ctx, call, func(ctx context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{}, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			const query = `UPDATE accounts SET balance = balance - 1250 WHERE id = 'customer-7'`
			if _, err := tx.Exec(ctx, query); err != nil {
				return err
			}
			return store.Join(ctx, tx) // an error rolls back
		})
	})
	fmt.Println(err)
}

// Expired records are deleted beside everything else.
func ExampleStore_RunCleaning() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	store, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(store.RunCleaning(ctx)) // until ctx ends
}
