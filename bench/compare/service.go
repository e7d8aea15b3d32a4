package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

const (
	durable     = "billing"
	receipts    = "receipts"
	deadLetters = "dead"

	subscriptions = 2 // the stock adapter delivers one message at a time to each
	connections   = 8 // to PostgreSQL: handlers, and the store beside them
	nakDelay      = 50 * time.Millisecond
	longRun       = 300 * time.Millisecond
)

// A service charges the orders of a shop, guarded in one way.
type service struct {
	address
	redis *redis.Client
	pool  *pgxpool.Pool
	conn  *nats.Conn

	// before is what a service does first that was guarded otherwise. If it says so, the order has been charged.
	before func(ctx context.Context, s *service, id string) (charged bool, err error)
}

// An address is what a process must know to be a service.
type address struct {
	Shop, Way        string // stream of the orders; key of ways
	NATS, Redis, DSN string
}

const serviceRole = "serve-orders" // the argument by which a program becomes a service

// serveIfAsked makes this process a service, until SIGTERM.
func serveIfAsked() {
	if len(os.Args) != 3 || os.Args[1] != serviceRole {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, []byte(os.Args[2])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(ctx context.Context, text []byte) error {
	s := &service{}
	if err := json.Unmarshal(text, &s.address); err != nil {
		return err
	}
	end, err := s.start(ctx, ways[s.Way])
	if err != nil {
		return err
	}
	<-ctx.Done()
	return end()
}

// start connects, and begins to handle orders. end lets running handlers finish.
func (s *service) start(ctx context.Context, w way) (end func() error, err error) {
	s.redis = redis.NewClient(&redis.Options{Addr: s.Redis, ContextTimeoutEnabled: true})
	config, err := pgxpool.ParseConfig(s.DSN)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if s.conn, err = nats.Connect(s.NATS, nats.Timeout(caseLimit)); err != nil {
		return nil, err
	}
	guard, endGuard, err := w.guard(s)
	if err != nil {
		return nil, err
	}
	var routers []func() error
	for range subscriptions {
		stop, err := s.route(ctx, guard, w)
		if err != nil {
			return nil, err
		}
		routers = append(routers, stop)
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for _, stop := range routers {
			err = errors.Join(err, stop())
		}
		err = errors.Join(err, endGuard(ctx), s.redis.Close())
		s.pool.Close()
		s.conn.Close()
		return err
	}, nil
}

// route runs a Router on one subscription. All have the same guard, and the same name for the handler.
func (s *service) route(ctx context.Context, guard message.HandlerMiddleware, w way) (stop func() error, err error) {
	sub, err := stock.NewSubscriber(stock.SubscriberConfig{
		Conn: s.conn, Logger: watermill.NopLogger{}, NakDelay: stock.NewStaticDelay(nakDelay),
		ConsumeOptions: []jetstream.PullConsumeOpt{jetstream.PullMaxMessages(1)},
		ResourceInitializer: stock.ExistingConsumer(func(string, string) jetstream.ConsumerConfig {
			return jetstream.ConsumerConfig{Name: durable}
		}, ""),
	})
	if err != nil {
		return nil, err
	}
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	r.AddMiddleware(guard)
	r.AddHandler("charge", s.Shop, sub, receipts, post{s}, func(msg *message.Message) ([]*message.Message, error) {
		return s.charge(msg, w)
	})
	ended := make(chan error, 1)
	go func() { ended <- r.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-r.Running():
	case err := <-ended:
		return nil, err
	}
	return func() error { return errors.Join(r.Close(), <-ended) }, nil
}

// charge is the handler. What goes wrong with an order goes wrong once.
func (s *service) charge(msg *message.Message, w way) ([]*message.Message, error) {
	ctx, fate := context.WithoutCancel(msg.Context()), msg.Metadata.Get(fateHeader) // what was begun is made
	if s.before != nil {
		if charged, err := s.before(ctx, s, msg.UUID); err != nil || charged {
			return nil, err
		}
	}
	strikes := false
	if fate != "" {
		var err error
		if strikes, err = s.first(ctx, "run", msg.UUID); err != nil {
			return nil, err
		}
	}
	switch {
	case strikes && fate == handlerFails:
		return nil, errors.New("the payment gateway timed out")
	case strikes && fate == copyDuringRun:
		time.Sleep(longRun)
	case strikes && fate == diesBefore:
		die()
	}
	var ledger execer = s.pool
	if w.tx != nil {
		ledger = w.tx(ctx)
	}
	const write = `INSERT INTO charges (shop, way, id, amount) VALUES ($1, $2, $3, $4)`
	if _, err := ledger.Exec(ctx, write, s.Shop, s.Way, msg.UUID, string(msg.Payload)); err != nil {
		return nil, err
	}
	if strikes && fate == diesAfter {
		die()
	}
	receipt := message.NewMessage(watermill.NewUUID(), []byte(msg.UUID))
	receipt.Metadata.Set(fateHeader, fate)
	return []*message.Message{receipt}, nil
}

// die is what a power cut does to a process.
func die() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

// first tells whether something happens to an order for the first time.
func (s *service) first(ctx context.Context, what, id string) (bool, error) {
	const write = `INSERT INTO firsts (shop, what, id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`
	tag, err := s.pool.Exec(ctx, write, s.Shop, what, id)
	return tag.RowsAffected() == 1, err
}

// A post is where the service publishes: a table.
type post struct{ s *service }

func (p post) Publish(topic string, messages ...*message.Message) error {
	ctx := context.Background()
	for _, m := range messages {
		fate := m.Metadata.Get(fateHeader)
		strikes := false
		if topic == receipts && (fate == publishFails || fate == ackLost) {
			var err error
			if strikes, err = p.s.first(ctx, "publish", string(m.Payload)); err != nil {
				return err
			}
		}
		if strikes && fate == publishFails {
			return errors.New("the broker is away")
		}
		const write = `INSERT INTO published (shop, topic, content) VALUES ($1, $2, $3)`
		if _, err := p.s.pool.Exec(ctx, write, p.s.Shop, topic, string(m.Payload)); err != nil {
			return err
		}
		if strikes { // the Router gives the message back, as if its ack had been lost
			return errors.New("the broker does not answer")
		}
	}
	return nil
}

func (post) Close() error { return nil }
