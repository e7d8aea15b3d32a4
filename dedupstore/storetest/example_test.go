package storetest_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

// The test of a store, here of the one in memory, whose clock is that of the process.
func ExampleRunVirtual() {
	testStore := func(t *testing.T) {
		storetest.RunVirtual(t, func(t *testing.T) storetest.Subject {
			store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
			if err != nil {
				t.Fatal(err)
			}
			return storetest.Subject{Store: store}
		})
	}
	_ = testStore
}

// An inbox in memory, for tests of code that uses one: effect and outcome are kept together, or neither.
func ExampleNewMemoryInbox() {
	records, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	inbox := storetest.NewMemoryInbox(records)
	guard, err := oncemill.NewGuard(inbox, oncemill.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "acme", Group: "ledger", Handler: "book", ID: "order-17"}}
	for range 2 {
		res, err := guard.Run(context.Background(), call, func(ctx context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, inbox.Write(ctx, "booking")
		})
		fmt.Println("duplicate:", res.Duplicate, "effects:", inbox.All(), "error:", err)
	}
	// Output:
	// duplicate: false effects: map[booking:1] error: <nil>
	// duplicate: true effects: map[booking:1] error: <nil>
}
