package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func ExampleNewPublisher() {
	ctx := context.Background()
	js, stop, err := exampleServer()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		fmt.Println(err)
		return
	}

	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = pub.Publish(ctx,
		producer.Message{ID: producer.DeriveID("orders", "4711"), Topic: "orders.created", Payload: []byte("{}")},
		producer.Message{ID: "o2", Topic: "invoices"}, // no stream listens
	)
	var failed *producer.PublishError
	if errors.As(err, &failed) {
		for _, f := range failed.Failures {
			fmt.Printf("message %d: unknown %v: %v\n", f.Index, f.Unknown, f.Err)
		}
	}
	// Output: message 1: unknown true: nats: no response from stream
}

// exampleServer runs a server in this process, so that the example needs nothing else.
func exampleServer() (jetstream.JetStream, func(), error) {
	dir, err := os.MkdirTemp("", "natsjs")
	if err != nil {
		return nil, nil, err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return nil, nil, err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return nil, nil, errors.New("the server is not ready")
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	return js, func() {
		nc.Close()
		s.Shutdown()
		s.WaitForShutdown()
		os.RemoveAll(dir)
	}, err
}
