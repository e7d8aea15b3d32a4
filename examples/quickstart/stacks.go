package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmjs "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// The stacks that handle the same messages side by side.
const (
	guarded      = "oncemill"
	unguarded    = "unguarded"
	deduplicator = "watermill_deduplicator"
)

var stackNames = []string{guarded, unguarded, deduplicator}

// lease is how long a dead handler's order waits, and how long a busy disk may take for a heartbeat. Real programs use the
// default of 30 s.
const lease = 5 * time.Second

// workers is how many messages a stack handles at a time: the stock adapter delivers one a subscription.
const workers = 4

// A stack is one way to consume the shop's orders, with its own ledger.
type stack struct {
	name      string
	names     names
	shop      *shop
	fates     map[string]fault
	death     *mortality // of the guarded stack
	telemetry oncemill.Telemetry
	router    *message.Router
	once      *consumer.Processor // of the guarded stack
	subs      several
	ended     chan error // nil: the router does not run
}

// guard is the part that a program of yours would have.
func (s *stack) guard(store dedupstore.Store, publisher producer.Publisher) (message.HandlerMiddleware, error) {
	once, err := consumer.New(store, consumer.Config{
		Group: "billing",
		Policy: oncemill.Policy{
			Lease:     lease,
			Backoff:   oncemill.Backoff{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond},
			Logger:    slog.New(slog.DiscardHandler),
			Telemetry: s.telemetry,
		},
		MaxWait:         3 * lease / 2,
		DeadLetters:     publisher,
		DeadLetterTopic: s.names.dead(s.name),
	})
	if err != nil {
		return nil, err
	}
	s.once = once
	return oncewatermill.Middleware(once), nil
}

// protection returns what stands between the broker and the stack's handler, outermost first.
func (s *stack) protection(store dedupstore.Store, publisher producer.Publisher) ([]message.HandlerMiddleware, error) {
	if s.name == guarded {
		mw, err := s.guard(store, publisher)
		return []message.HandlerMiddleware{mw}, err
	}
	// The other stacks get a dead-letter topic too: what is compared is what happens to duplicates.
	poison, err := middleware.PoisonQueueWithFilter(oncewatermill.NewPublisher(publisher), s.names.dead(s.name), func(err error) bool {
		var permanent *oncemill.PermanentError
		return errors.As(err, &permanent)
	})
	if err != nil || s.name == unguarded {
		return []message.HandlerMiddleware{poison}, err
	}
	dedup := middleware.Deduplicator{
		// By message ID, which is fair: by default it compares Adler-32 sums of payloads.
		KeyFactory: func(msg *message.Message) (string, error) { return msg.Metadata.Get(producer.HeaderID), nil },
		Timeout:    time.Minute,
	}
	dedup.Repository, err = middleware.NewMapExpiringKeyRepository(10 * time.Minute)
	return []message.HandlerMiddleware{poison, dedup.Middleware}, err
}

// start subscribes the stack to the orders.
func (s *stack) start(ctx context.Context, b *broker, store dedupstore.Store, publisher producer.Publisher) error {
	protection, err := s.protection(store, publisher)
	if err != nil {
		return err
	}
	s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	s.router.AddMiddleware(s.countDeliveries, s.loseAcks)
	s.router.AddMiddleware(protection...)
	for range workers {
		sub, err := s.subscriber(b)
		if err != nil {
			return err
		}
		s.subs = append(s.subs, sub)
	}
	s.router.AddHandler("charge", s.names.orders(), s.subs, s.names.receipts(s.name), oncewatermill.NewPublisher(publisher), s.charge)
	ended := make(chan error, 1)
	go func() { ended <- s.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-s.router.Running():
		s.ended = ended
		return nil
	case err := <-ended:
		return fmt.Errorf("start stack %s: %w", s.name, err)
	}
}

// Several subscribers are one to the Router: they share a handler, under whose name records are kept.
type several []message.Subscriber

func (s several) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	all := make(chan *message.Message)
	var each sync.WaitGroup
	for _, sub := range s {
		messages, err := sub.Subscribe(ctx, topic)
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

// Close closes all of them.
func (s several) Close() error {
	var errs []error
	for _, sub := range s {
		errs = append(errs, sub.Close())
	}
	return errors.Join(errs...)
}

func (s *stack) subscriber(b *broker) (message.Subscriber, error) {
	conn, err := b.connect() // the adapter closes its connection
	if err != nil {
		return nil, err
	}
	sub, err := wmjs.NewSubscriber(wmjs.SubscriberConfig{
		Conn:           conn,
		Logger:         watermill.NopLogger{},
		AckWaitTimeout: time.Minute,
		NakDelay:       wmjs.NewStaticDelay(50 * time.Millisecond),
		ConsumeOptions: []jetstream.PullConsumeOpt{jetstream.PullMaxMessages(1)},
		ResourceInitializer: func(ctx context.Context, js jetstream.JetStream, topic string) (jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error) {
			cons, err := js.CreateOrUpdateConsumer(ctx, s.names.stream(), jetstream.ConsumerConfig{
				Durable: s.name, FilterSubject: topic, AckPolicy: jetstream.AckExplicitPolicy,
				AckWait: 2 * lease, MaxDeliver: -1, MaxAckPending: 256,
			})
			return cons, nil, err
		},
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return sub, nil
}

// stop lets running handlers finish and their acks reach the broker. It also ends a stack that could not be started.
func (s *stack) stop(ctx context.Context) (err error) {
	if s.ended != nil {
		err = errors.Join(s.router.Close(), <-s.ended)
	} else { // a router that does not run would wait for handlers that never began
		for _, sub := range s.subs {
			err = errors.Join(err, sub.Close())
		}
	}
	if s.once != nil {
		err = errors.Join(err, s.once.Close(ctx))
	}
	return err
}

// charge is the handler: it charges the card, and returns a receipt.
func (s *stack) charge(msg *message.Message) ([]*message.Message, error) {
	ctx := context.WithoutCancel(msg.Context()) // a charge that was begun is made, as at a payment provider
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return nil, oncemill.Permanent(fmt.Errorf("order is not JSON: %w", err))
	}
	if err := s.shop.count(ctx, s.name, "runs"); err != nil {
		return nil, err
	}
	switch fate := s.fates[o.ID]; fate {
	case poisonOrder:
		return nil, oncemill.Permanent(errors.New("the card number has 17 digits"))
	case handlerFails:
		if first, err := s.shop.once(ctx, s.name, o.ID); err != nil || first {
			return nil, errors.Join(err, errors.New("the payment gateway timed out"))
		}
	}
	gateway(10 * time.Millisecond)
	entry, err := s.shop.charge(ctx, s.name, o, time.Now().UnixMicro())
	if err != nil {
		return nil, err
	}
	if s.death != nil {
		s.death.charged(o.ID, entry)
		if err := s.dieAfterWrite(msg, o.ID); err != nil {
			return nil, err
		}
	}
	gateway(10 * time.Millisecond)
	receipt := message.NewMessage("", fmt.Appendf(nil, `{"order":%q,"cents":%d}`, o.ID, o.Amount))
	return []*message.Message{receipt}, nil
}

// gateway takes the time of a call to the payment gateway. It cannot be interrupted, as a charge cannot.
func gateway(d time.Duration) { time.Sleep(d/2 + rand.N(d)) }

// countDeliveries is the outermost middleware.
func (s *stack) countDeliveries(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := context.WithoutCancel(msg.Context())
		if err := s.shop.count(ctx, s.name, "deliveries"); err != nil {
			return nil, err
		}
		first, err := s.shop.firstSeen(ctx, s.name, msg.Metadata.Get(producer.HeaderID))
		if err == nil && !first {
			err = s.shop.count(ctx, s.name, "duplicates")
		}
		if err != nil {
			return nil, err
		}
		return next(msg)
	}
}

// loseAcks plays the process that dies after the chain returned, before outputs are published and the ack is sent.
func (s *stack) loseAcks(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		outputs, err := next(msg)
		if id := msg.Metadata.Get(producer.HeaderID); err == nil && s.fates[id] == ackLost {
			if first, err := s.shop.once(context.WithoutCancel(msg.Context()), s.name, id); err != nil || first {
				return nil, errors.Join(err, errors.New("injected: died before the ack"))
			}
		}
		return outputs, err
	}
}
