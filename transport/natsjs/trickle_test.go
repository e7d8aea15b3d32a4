package natsjs_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func TestWorker_OrderKeysKeepTheOrderOfWhatTricklesIn(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config = natsjs.Config{MaxInFlight: 16, Order: natsjs.BySubject}
	n := full(10_000, 2000)
	stop := r.start(r.worker(succeed))
	for i := range n { // while requests are outstanding that each take a part
		msg := nats.NewMsg("orders.all")
		msg.Header.Set(producer.HeaderID, fmt.Sprintf("o%d", i))
		if _, err := r.js.PublishMsgAsync(msg); err != nil {
			t.Fatal(err)
		}
	}
	r.finishes(n)
	r.stops(stop)
	r.acked(n)
	r.inOrder(n)
}
