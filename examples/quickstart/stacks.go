package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmjs "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// The stacks that handle the same messages side by side.
const (
	guarded      = "oncemill"
	unguarded    = "unguarded"
	deduplicator = "watermill_deduplicator"
)

var stacks = []string{guarded, unguarded, deduplicator}

// lease is how long a dead handler's order waits, and how long a busy disk may take for a heartbeat. Real programs use
// the default of 30 s.
const lease = 5 * time.Second

// workers is how many messages a stack handles at a time: the stock adapter delivers one a subscription.
const workers = 4

// A stack is one way to consume the shop's orders, with its own ledger.
type stack struct {
	name      string
	shop      *store
	broker    *broker
	fates     map[string]fault
	records   *mortality // of the guarded stack
	telemetry oncemill.Telemetry
	acked     sync.Map // when orders were, as a time.Time
}

// guard is the part that a program of yours would have.
func (s *stack) guard() (*consumer.Processor, error) {
	return consumer.New(s.records, consumer.Config{
		Group: "billing",
		Policy: oncemill.Policy{
			Lease:     lease,
			Backoff:   oncemill.Backoff{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond},
			Logger:    slog.New(slog.DiscardHandler),
			Telemetry: s.telemetry,
		},
		MaxWait:         3 * lease / 2,
		DeadLetters:     s.broker.publisher,
		DeadLetterTopic: s.broker.names.dead(s.name),
	})
}

// protect puts something between the broker and the stack's handler. It returns what ends that.
func (s *stack) protect(router *message.Router) (end func(context.Context) error, err error) {
	if s.name == guarded {
		once, err := s.guard()
		if err != nil {
			return nil, err
		}
		router.AddMiddleware(oncewatermill.Middleware(once))
		return once.Close, nil
	}
	// The other stacks get a dead-letter topic too: what is compared is what happens to duplicates.
	dead := s.broker.names.dead(s.name)
	publisher := oncewatermill.NewPublisher(s.broker.publisher)
	poison, err := middleware.PoisonQueueWithFilter(publisher, dead, func(err error) bool {
		_, permanent := errors.AsType[interface {
			error
			Permanent() bool
		}](err)
		return permanent
	})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(poison)
	if s.name == deduplicator {
		dedup := middleware.Deduplicator{
			// By message ID, which is fair: by default it compares Adler-32 sums of payloads.
			KeyFactory: func(msg *message.Message) (string, error) { return msg.Metadata.Get(producer.HeaderID), nil },
			Timeout:    time.Minute,
		}
		if dedup.Repository, err = middleware.NewMapExpiringKeyRepository(10 * time.Minute); err != nil {
			return nil, err
		}
		router.AddMiddleware(dedup.Middleware)
	}
	return func(context.Context) error { return nil }, nil
}

// start subscribes the stack to the orders. stop lets running handlers finish and their acks reach the broker.
func (s *stack) start(ctx context.Context) (stop func() error, err error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(s.countDeliveries, s.loseAcks)
	end, err := s.protect(router)
	if err != nil {
		return nil, err
	}
	sub, err := s.subscriber()
	if err != nil {
		return nil, err
	}
	router.AddHandler("charge", s.broker.names.orders(), parallel{sub},
		s.broker.names.receipts(s.name), oncewatermill.NewPublisher(s.broker.publisher), s.charge)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-router.Running():
	case err := <-ended:
		return nil, errors.Join(err, sub.Close(), end(ctx)) // a router that does not run does not end it
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(router.Close(), <-ended, end(ctx))
	}, nil
}

// A parallel subscriber has several subscriptions, which are one to the Router.
type parallel struct{ message.Subscriber }

func (p parallel) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	all := make(chan *message.Message)
	var each sync.WaitGroup
	for range workers {
		messages, err := p.Subscriber.Subscribe(ctx, topic)
		if err != nil {
			return nil, err
		}
		each.Go(func() {
			for msg := range messages {
				all <- msg
			}
		})
	}
	go func() {
		each.Wait()
		close(all)
	}()
	return all, nil
}

func (s *stack) subscriber() (message.Subscriber, error) {
	js, _, err := shop.OpenNATS(s.broker.url, "", reconnects) // the adapter closes its connection
	if err != nil {
		return nil, err
	}
	sub, err := wmjs.NewSubscriber(wmjs.SubscriberConfig{
		Conn:                js.Conn(),
		Logger:              watermill.NopLogger{},
		AckWaitTimeout:      time.Minute,
		NakDelay:            wmjs.NewStaticDelay(50 * time.Millisecond),
		ConsumeOptions:      []jetstream.PullConsumeOpt{jetstream.PullMaxMessages(1)},
		ResourceInitializer: s.durable,
	})
	if err != nil {
		js.Conn().Close()
		return nil, err
	}
	return sub, nil
}

// durable makes the consumer that the stack's subscriptions share.
func (s *stack) durable(ctx context.Context, js jetstream.JetStream, topic string) (
	jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error,
) {
	cons, err := js.CreateOrUpdateConsumer(ctx, s.broker.names.stream(), jetstream.ConsumerConfig{
		Durable: s.name, FilterSubject: topic, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: 2 * lease, MaxDeliver: -1, MaxAckPending: 256,
	})
	return cons, nil, err
}

// charge is the handler: it charges the card, and returns a receipt.
func (s *stack) charge(msg *message.Message) ([]*message.Message, error) {
	ctx := context.WithoutCancel(msg.Context()) // a charge that was begun is made, as at a payment provider
	o, err := shop.ParseOrder(msg.Payload)
	if err != nil {
		return nil, oncemill.Permanent(err)
	}
	if err := s.shop.note(ctx, s.name, "run", o.ID); err != nil {
		return nil, err
	}
	if s.fates[o.ID] == poisonOrder {
		return nil, oncemill.Permanent(errors.New("the card number has 17 digits"))
	}
	if err := s.strike(ctx, handlerFails, o.ID, errors.New("the payment gateway timed out")); err != nil {
		return nil, err
	}
	gateway(10 * time.Millisecond)
	const write = `INSERT INTO ledger (stack, order_id, amount, pid, at) VALUES (?, ?, ?, ?, ?)`
	_, err = s.shop.db.ExecContext(ctx, write, s.name, o.ID, o.Cents, os.Getpid(), time.Now().UnixMicro())
	if err != nil {
		return nil, err
	}
	if s.records != nil {
		if err := s.strike(ctx, diesAfterWrite, o.ID, errDead); err != nil {
			s.records.kill(oncemill.FromContext(msg.Context()))
			return nil, err
		}
	}
	gateway(10 * time.Millisecond)
	receipt := message.NewMessage("", fmt.Appendf(nil, `{"order":%q,"cents":%d}`, o.ID, o.Cents))
	return []*message.Message{receipt}, nil
}

// gateway takes the time of a call to the payment gateway. It cannot be interrupted, as a charge cannot.
func gateway(d time.Duration) { time.Sleep(d/2 + rand.N(d)) }

// countDeliveries is the outermost middleware.
func (s *stack) countDeliveries(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx, id := context.WithoutCancel(msg.Context()), msg.Metadata.Get(producer.HeaderID)
		if err := s.shop.note(ctx, s.name, "delivery", id); err != nil {
			return nil, err
		}
		outputs, err := next(msg)
		if err == nil {
			s.acked.LoadOrStore(id, time.Now())
		}
		return outputs, err
	}
}
