package dedupstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A message is claimed, processed, and its outcome is given to the duplicate that follows.
func ExampleNewMemory() {
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	request := dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "order-7"},
		Owner: "a-random-token-1", Lease: 30 * time.Second, Retention: 24 * time.Hour, MaxAttempts: 5,
	}
	first, err := dedupstore.ClaimOne(ctx, store, request)
	fmt.Println(first.Status, err)

	err = dedupstore.SettleOne(ctx, store, first.Claim, dedupstore.Finish{
		Outcome:   dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("charged 12.50")},
		Retention: 24 * time.Hour,
	})
	fmt.Println(err)

	request.Owner = "a-random-token-2"
	second, err := dedupstore.ClaimOne(ctx, store, request)
	fmt.Printf("%s: %s, %s %v\n", second.Status, second.Outcome.Kind, second.Outcome.Result, err)
	// Output:
	// acquired_run <nil>
	// <nil>
	// done: succeeded, charged 12.50 <nil>
}
