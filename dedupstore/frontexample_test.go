package dedupstore_test

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

// A duplicate of what is done is refused by the cheap store, and the database is not asked. In a service they would be a
// redisstore.Store and the Inbox of a pgstore.Store.
func ExampleFront() {
	cheap, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	records, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	inbox := storetest.NewMemoryInbox(records)
	front := dedupstore.Front(cheap, inbox)

	ctx := context.Background()
	first, err := front.Claim(ctx, frontRequest("order-7"))
	fmt.Println(first.Status, err)
	err = front.InTx(ctx, first.Claim, func(ctx context.Context) (dedupstore.Settlement, error) {
		return dedupstore.Finish{Outcome: paid(), Retention: first.Claim.Retention}, inbox.Write(ctx, "charge")
	})
	fmt.Println(inbox.All(), err)

	second, err := front.Claim(ctx, frontRequest("order-7"))
	fmt.Printf("%s: %s %v\n", second.Status, second.Outcome.Result, err)
	fmt.Printf("%+v\n", front.Stats())
	// Output:
	// acquired_run <nil>
	// map[charge:1] <nil>
	// done: paid <nil>
	// {Refused:1 Passed:1 Failed:0 Skipped:0}
}
