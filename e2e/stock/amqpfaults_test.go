package stock_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/rabbittest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A rabbitRig is a queue, and a Router with a guarded handler that consumes it.
type rabbitRig struct {
	t          *testing.T
	topic      string
	config     amqp.Config
	store      *dedupstore.Memory
	channel    *amqp091.Channel
	pub        message.Publisher
	dead       *deadLetters
	deliveries atomic.Int64 // that reach the Router
	runs       atomic.Int64
}

// newRabbitRig makes a queue of a kind, with arguments beside it.
func newRabbitRig(t *testing.T, kind string, arguments amqp091.Table) *rabbitRig {
	t.Helper()
	server := rabbittest.Shared(t)
	r := &rabbitRig{t: t, topic: stockTopic(), config: rabbitConfig(server.URL(), kind), dead: &deadLetters{}}
	for name, value := range arguments {
		r.config.Queue.Arguments[name] = value
	}
	var err error
	if r.store, err = dedupstore.NewMemory(dedupstore.MemoryConfig{}); err != nil {
		t.Fatal(err)
	}
	admin, err := amqp091.Dial(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	if r.channel, err = admin.Channel(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.channel.QueueDeclare(r.topic, true, false, false, false, r.config.Queue.Arguments); err != nil {
		t.Fatal(err)
	}
	if r.pub, err = amqp.NewPublisher(r.config, watermill.NopLogger{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.pub.Close() })
	return r
}

func (r *rabbitRig) publish(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		msg := message.NewMessage(id, []byte(id))
		msg.Metadata.Set(producer.HeaderID, id)
		if err := r.pub.Publish(r.topic, msg); err != nil {
			r.t.Fatal(err)
		}
	}
}

// ready is how many messages wait in the queue.
func (r *rabbitRig) ready() int {
	r.t.Helper()
	q, err := r.channel.QueueDeclarePassive(r.topic, true, false, false, false, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return q.Messages
}

// serve runs a service until it is stopped, at the latest at the end of the test.
func (r *rabbitRig) serve(c consumer.Config, handle func(run int64) error) (stop func()) {
	r.t.Helper()
	c.Group, c.DeadLetters, c.DeadLetterTopic = "billing", r.dead, "dead"
	c.Policy.Logger = slog.New(slog.DiscardHandler)
	once, err := consumer.New(r.store, c)
	if err != nil {
		r.t.Fatal(err)
	}
	sub, err := amqp.NewSubscriber(r.config, watermill.NopLogger{})
	if err != nil {
		r.t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		r.t.Fatal(err)
	}
	router.AddMiddleware(r.count, oncewatermill.Middleware(once))
	router.AddConsumerHandler("charge", r.topic, sub, func(*message.Message) error { return handle(r.runs.Add(1)) })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := router.Run(ctx); err != nil {
			r.t.Errorf("Router.Run: %v", err)
		}
	}()
	<-router.Running()
	stop = func() {
		cancel()
		<-ended
		sub.Close()
	}
	r.t.Cleanup(stop)
	return stop
}

func (r *rabbitRig) count(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		r.deliveries.Add(1)
		return next(msg)
	}
}

// hold claims a message for another owner.
func (r *rabbitRig) hold(id string, lease time.Duration) {
	r.t.Helper()
	_, err := dedupstore.ClaimOne(r.t.Context(), r.store, dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id},
		Owner: "another-process-with-the-key", Lease: lease, Retention: time.Hour, MaxAttempts: 10,
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// Classic queues deliver a nacked message again at once, quorum queues too.
func TestAMQP_NackIsDeliveredAgainAtOnceAndTheDelayIsSpentInTheProcess(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		r := newRabbitRig(t, kind, nil)
		r.publish("m1")
		var first time.Time
		r.serve(consumer.Config{}, func(run int64) error {
			if run == 1 {
				first = time.Now()
				return oncemill.RetryAfter(500*time.Millisecond, errDeclined)
			}
			if waited := time.Since(first); waited < 500*time.Millisecond {
				t.Errorf("%s: the retry came after %v", kind, waited)
			}
			return nil
		})
		until(t, "the retry", func() bool { return r.runs.Load() == 2 })
		if n := r.deliveries.Load(); n > 3 { // the wait spends the delay
			t.Errorf("%s: %d deliveries, want no more than three", kind, n)
		}
	}
}

// A message whose key is busy uses up deliveries, and is lost without a run.
func TestBareAMQP_DeliveryLimitLosesMessagesThatOnlyWait(t *testing.T) {
	t.Parallel()
	r := newRabbitRig(t, "quorum", amqp091.Table{"x-delivery-limit": 3})
	r.hold("m1", time.Hour)
	r.publish("m1")
	stop := r.serve(consumer.Config{MaxWait: 10 * time.Millisecond}, func(int64) error { return nil })
	until(t, "the last delivery", func() bool { return r.deliveries.Load() >= 4 })
	r.publish("m2")
	until(t, "the next message", func() bool { return r.runs.Load() == 1 })
	stop()
	if n := r.ready(); n != 0 || r.dead.sent.Load() != 0 {
		t.Errorf("%d messages are left and %d dead letters, want none", n, r.dead.sent.Load())
	}
	if n := r.deliveries.Load(); n != 5 {
		t.Errorf("%d deliveries, want four of the lost message and one of the next", n)
	}
}

// The adapter's own marshaler cannot read x-delivery-count, a number, and refuses each redelivery, up to the limit.
func TestBareAMQP_MarshalerRefusesWhatAQuorumQueueDeliversAgain(t *testing.T) {
	t.Parallel()
	r := newRabbitRig(t, "quorum", amqp091.Table{"x-delivery-limit": 5})
	r.config.Marshaler = amqp.DefaultMarshaler{}
	r.publish("m1")
	stop := r.serve(consumer.Config{MaxWait: time.Millisecond}, func(run int64) error {
		if run == 1 {
			return oncemill.RetryAfter(time.Millisecond, errDeclined)
		}
		return nil
	})
	until(t, "the first run", func() bool { return r.runs.Load() == 1 })
	r.publish("m2")
	until(t, "the next message", func() bool { return r.runs.Load() == 2 })
	stop()
	if n := r.ready(); n != 0 || r.deliveries.Load() != 2 {
		t.Errorf("%d messages are left after %d deliveries, want none after two: the adapter has learned to read numbers",
			n, r.deliveries.Load())
	}
}
