package natskv_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

func ExampleNew() {
	ctx := context.Background()
	js, stop, err := natstest.ForExample() // in your service jetstream.New
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	if _, err := js.CreateStream(ctx, natskv.Bucket("oncemill", 1)); err != nil { // once; 3 replicas in production
		log.Fatal(err)
	}
	store, err := natskv.New(js, natskv.Config{Logger: slog.New(slog.DiscardHandler)}) // it warns of the one replica
	if err != nil {
		log.Fatal(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "order-17"}}
	for range 2 {
		res, err := guard.Run(ctx, call, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: []byte("charged")}, nil
		})
		fmt.Printf("duplicate: %v, result: %s, error: %v\n", res.Duplicate, res.Outcome.Result, err)
	}
	// Output:
	// duplicate: false, result: charged, error: <nil>
	// duplicate: true, result: charged, error: <nil>
}
