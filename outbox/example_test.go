package outbox_test

import (
	"context"
	"fmt"
	"log"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func ExampleNewRelay() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	box := new(fakeStore).write("order-17", "order-18") // in your service pgoutbox.New or another
	publisher := &broker{answer: func(_ context.Context, messages []producer.Message) error {
		for _, m := range messages {
			fmt.Println("published", m.ID, "to", m.Topic)
		}
		stop() // enough for an example
		return nil
	}}

	relay, err := outbox.NewRelay(box, publisher, outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(relay.Run(ctx)) // ends with ctx, when its last batch is settled
	// Output:
	// published order-17 to orders
	// published order-18 to orders
	// <nil>
}
