package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A stream may refuse what is published. Within its duplicate window the rerun must be another message than the failed
// one, and copies of one rerun must be the same message.
func TestRerun_OverJetStreamWithinItsDuplicateWindow(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	stream := func(name string) jetstream.Stream {
		t.Helper()
		s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: name, Subjects: []string{name + ".>"}, MaxAge: time.Hour, Duplicates: 10 * time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	orders, graveyard := stream("orders"), stream("dead")
	cons, err := orders.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := graveyard.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "operator", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	once := newProcessor(t, newStore(t), consumer.Config{DeadLetters: pub, DeadLetterTopic: "dead.billing"})

	var mu sync.Mutex
	var runs []oncemill.Run
	var seen []nats.Header
	w, err := natsjs.NewWorker(once, js, cons, func(ctx context.Context, msg jetstream.Msg) error {
		mu.Lock()
		defer mu.Unlock()
		runs, seen = append(runs, oncemill.FromContext(ctx)), append(seen, msg.Headers())
		if len(runs) < 3 {
			return oncemill.Permanent(errors.New("card declined"))
		}
		return nil
	}, natsjs.Config{Handler: "charge", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()

	order := producer.Message{ID: "o1", Topic: "orders.created", Key: "customer 7", Header: producer.Header{"color": "blue"}, Payload: []byte("order o1")}
	publish := func(m producer.Message) {
		t.Helper()
		if err := pub.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	publish(order)
	for range 2 {
		msg, err := dead.Next(jetstream.FetchMaxWait(30 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		header := producer.Header{}
		for name := range msg.Headers() {
			header[name] = msg.Headers().Get(name)
		}
		again, err := consumer.Rerun(producer.Message{Header: header, Payload: msg.Data()})
		if err != nil {
			t.Fatal(err)
		}
		publish(order) // the control: it is a duplicate
		publish(again)
		publish(again) // the operator is not sure
		copied := nats.NewMsg(again.Topic)
		for name, value := range again.Header {
			copied.Header[name] = []string{value}
		}
		copied.Header.Set(producer.HeaderKey, again.Key)
		copied.Data = again.Payload
		if _, err := js.PublishMsg(t.Context(), copied); err != nil { // a copy that the stream does not recognise
			t.Fatal(err)
		}
		if err := msg.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	settled := func() bool {
		info, err := cons.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.AckFloor.Stream == 5 && info.NumPending == 0 && info.NumAckPending == 0
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !settled(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("the consumer has not settled the message, two reruns and a copy of each")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if info, err := orders.Info(t.Context()); err != nil || info.State.Msgs != 5 {
		t.Errorf("stream %+v, %v; want the message, two reruns and a copy of each", info, err)
	}
	if info, err := graveyard.Info(t.Context()); err != nil || info.State.Msgs != 2 {
		t.Errorf("dead letters %+v, %v; want two", info, err)
	}
	if len(runs) != 3 {
		t.Fatalf("%d runs, want a first and two reruns", len(runs))
	}
	for i, run := range runs {
		if run.Key != runs[0].Key || run.ID("charge") != runs[0].ID("charge") || run.Attempt != 1 {
			t.Errorf("run %d: %+v, want it to be as %+v", i, run, runs[0])
		}
		if seen[i].Get("color") != "blue" || seen[i].Get(producer.HeaderKey) != "customer 7" || seen[i].Get(producer.HeaderOutcome) != "" {
			t.Errorf("run %d has header %v", i, seen[i])
		}
	}
}
