package stock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/sourcetest"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A stockSource is a subscriber of Watermill's, behind a Router with the middleware, as a consumer.Source: what a
// handler in that Router gets is a delivery, and what it returns is the decision.
type stockSource struct {
	once  *consumer.Processor // the suite's
	guard *consumer.Processor // the middleware's
	*stockGroup
}

// Processor returns what the source was made with.
func (s *stockSource) Processor() *consumer.Processor { return s.once }

// Check finds nothing: a subscriber can do without.
func (s *stockSource) Check(context.Context, string) error { return nil }

// Run hands over what comes to a handler of a Router.
func (s *stockSource) Run(ctx context.Context, topic string, handle consumer.SourceHandler) error {
	return s.route(ctx, topic, s.guard, func(msg *message.Message) error {
		d := consumer.Delivery{
			Topic: topic, Header: producer.Header(maps.Clone(msg.Metadata)), UUID: msg.UUID, Payload: msg.Payload,
		}
		decided := make(chan consumer.Decision, 1)
		handle(msg.Context(), d, func(d consumer.Decision) { decided <- d })
		switch decision := <-decided; decision.Action {
		case consumer.Ack:
			return nil
		case consumer.Reject:
			return oncemill.Permanent(decision.Err)
		default:
			return oncemill.Uncounted(oncemill.RetryAfter(decision.Delay, decision.Err))
		}
	})
}

// route runs a Router with a guarded handler until ctx ends.
func (s *stockSource) route(
	ctx context.Context, topic string, once *consumer.Processor, handle message.NoPublishHandlerFunc,
) error {
	sub, err := s.subscribe()
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(oncewatermill.Middleware(once))
	router.AddConsumerHandler("charge", topic, sub, handle)
	running := ctx
	if s.closeFirst {
		running = context.WithoutCancel(ctx)
		closed := make(chan error, 1)
		stop := context.AfterFunc(ctx, func() {
			<-router.Running()
			closed <- sub.Close()
		})
		defer func() {
			if !stop() {
				<-closed
			}
		}()
	}
	err = router.Run(running)
	return errors.Join(err, sub.Close())
}

// A stockGroup makes members of a group over a kind of subscriber.
type stockGroup struct {
	t          *testing.T
	topic      string
	store      dedupstore.Store // of the middlewares
	subscribe  func() (message.Subscriber, error)
	closeFirst bool // close a subscriber before its context ends
	dead       *deadLetters
}

func newStockGroup(t *testing.T, topic string, subscribe func() (message.Subscriber, error)) *stockGroup {
	t.Helper()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &stockGroup{t: t, topic: topic, store: store, subscribe: subscribe, dead: &deadLetters{}}
}

// subject is what all adapters have in common. What they lack is in docs/brokers.md.
func (g *stockGroup) subject(publish func(...sourcetest.Message), left func() int) sourcetest.Subject {
	return sourcetest.Subject{
		Topic: g.topic, Publish: publish, Left: left,
		Open: func(m sourcetest.Member) consumer.Source { return g.source(m) },
		Guard: func(ctx context.Context, m sourcetest.Member, handle consumer.Handler) error {
			return g.source(m).route(ctx, g.topic, m.Once, func(msg *message.Message) error { return handle(msg.Context()) })
		},
		Lacks: map[sourcetest.Capability]string{
			sourcetest.Concurrency: "a subscription handles one message at a time",
			sourcetest.Sparing:     "the middleware can only nack, and each nack is a delivery",
			sourcetest.Drain:       "the end of a subscription ends the contexts of its messages",
		},
	}
}

func (g *stockGroup) source(m sourcetest.Member) *stockSource {
	g.t.Helper()
	guard, err := consumer.New(g.store, consumer.Config{
		Group: "adapter", DeadLetters: g.dead, DeadLetterTopic: "dead",
		Policy: oncemill.Policy{
			Logger:  slog.New(slog.DiscardHandler),
			Backoff: oncemill.Backoff{Min: 20 * time.Millisecond, Max: 100 * time.Millisecond},
		},
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return &stockSource{m.Once, guard, g}
}

// payload of a message that a publisher of another kind sends.
func stockMessage(m sourcetest.Message) *message.Message {
	msg := message.NewMessage(m.ID, m.Payload)
	msg.Metadata.Set(producer.HeaderID, m.ID)
	if m.Key != "" {
		msg.Metadata.Set(producer.HeaderKey, m.Key)
	}
	return msg
}

var stockTopics = make(chan int, 1)

func init() { stockTopics <- 0 }

// stockTopic is the name of a new topic.
func stockTopic() string {
	n := <-stockTopics
	stockTopics <- n + 1
	return fmt.Sprintf("conforms-%d", n)
}
