package oncewatermill_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

func ExampleStampDecorator() {
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	defer broker.Close()
	pub, err := oncewatermill.StampDecorator(broker)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := pub.Publish("orders", message.NewMessage("order-4711", message.Payload("{}"))); err != nil {
		fmt.Println(err)
		return
	}
	received, err := broker.Subscribe(context.Background(), "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := <-received
	msg.Ack()
	fmt.Println(msg.Metadata.Get(producer.HeaderID))
	// Output: order-4711
}
