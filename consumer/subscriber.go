package consumer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/internal/contexts"
	"github.com/oncemill/oncemill/producer"
)

// Subscriber returns a Watermill Subscriber over a source. With Processor.Middleware in the Router, everything that the
// middleware decides is carried out by the source: delays, rejections, deliveries that are left alone. Without it, or
// when an outer middleware nacks, a message is delivered again after a delay that grows with its deliveries. When an outer
// middleware makes a success of an error of the guard's, as Watermill's own PoisonQueue does, the message is delivered again
// all the same, with an error in the log, unless the guard has rejected it for good.
//
// Subscriptions of one topic share its messages, as the members of a group do. Handlers that are each to get all of them need
// Subscribers of their own, over sources with another consumer (natsjs) or group (franz); a second subscription is a warning.
//
// It delivers messages as many at once as the source does. A message's UUID is the delivery's, or else its message ID.
// Subscribe returns the error of Source.Check. When the source cannot go on, the subscription logs the error and begins
// again, after pauses of up to 30 s, until it is closed.
//
// The context of Subscribe and Close begin the drain that Source.Run describes: messages that a handler is at keep their
// contexts, and their acks reach the broker. Close returns after that, and then the channels are closed. A handler that is
// still running when the source's grace is over has its context cancelled and is not waited for: that is the Router's part.
func Subscriber(source Source) message.Subscriber {
	return &subscriber{source: source, closing: make(chan struct{}), topics: map[string]int{}}
}

type subscriber struct {
	source  Source
	mu      sync.Mutex
	closed  bool
	closing chan struct{}
	topics  map[string]int // subscriptions that go on
	runs    sync.WaitGroup
	warned  sync.Once
}

// errSubscriberClosed refuses what comes after Close.
var errSubscriberClosed = errors.New("consumer: Subscriber is closed")

func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.source.Check(ctx, topic); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errSubscriberClosed
	}
	if s.topics[topic]++; s.topics[topic] == 2 {
		slog.WarnContext(ctx, "oncemill: a topic is subscribed to twice: the subscriptions share its messages, and each is handled by one of them; handlers that are to get all of them need sources of their own, with another consumer or group",
			"topic", topic)
	}
	ctx, cancel := context.WithCancel(ctx)
	s.runs.Go(func() {
		defer cancel()
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
	})
	out := make(chan *message.Message)
	s.runs.Go(func() {
		defer close(out)
		defer cancel()
		s.run(ctx, topic, out)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.topics[topic]--
	})
	return out, nil
}

// Close ends all subscriptions and waits for them.
func (s *subscriber) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	s.runs.Wait()
	return nil
}

// run keeps a subscription going until ctx ends.
func (s *subscriber) run(ctx context.Context, topic string, out chan<- *message.Message) {
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		began := time.Now()
		err := s.source.Run(ctx, topic, func(each context.Context, d Delivery) Decision {
			return s.deliver(each, d, out, ctx.Done())
		})
		if ctx.Err() != nil {
			if err != nil {
				slog.ErrorContext(ctx, "oncemill: subscription did not end well", "topic", topic, "error", err)
			}
			return
		}
		if time.Since(began) > time.Minute {
			wait = time.Second
		}
		slog.ErrorContext(ctx, "oncemill: subscription cannot go on; it begins again", "topic", topic, "error", err, "after", wait)
		pause(ctx, wait/2+rand.N(wait/2))
	}
}

// A passage is a message's way through a Router: its context, which lets Processor.Middleware do more than a Router can,
// which only acks and nacks.
type passage struct {
	contexts.Lazy
	delivery Delivery

	// decided is what to do with the message. The middleware says so before it is nacked, and not for an ack, unless it said
	// something before, and a middleware outside of it tried again. A message that is to come again, or to be left alone, was
	// not handled, whatever a middleware made of the error. Against a nack, Ack does not stand: the outputs may not have been
	// published. Nil: nobody but the Router has decided.
	decided atomic.Pointer[Decision]
}

func (p *passage) decide(d Decision) { p.decided.Store(&d) }

type passageKey struct{}

// Value implements context.Context.
func (p *passage) Value(key any) any {
	if key == (passageKey{}) {
		return p
	}
	return p.Lazy.Value(key)
}

// passageOf returns the passage of a message, or nil. A context that has passed a guard carries that of another message,
// whose handler has produced this one: some brokers keep contexts.
func passageOf(ctx context.Context) *passage {
	if insideOf(ctx) != nil {
		return nil
	}
	p, _ := ctx.Value(passageKey{}).(*passage)
	return p
}

// deliver hands a message to the Router and waits for what becomes of it.
func (s *subscriber) deliver(each context.Context, d Delivery, out chan<- *message.Message, draining <-chan struct{}) Decision {
	p := &passage{delivery: d}
	p.Init(each)
	defer p.Cancel(nil) // as Watermill's adapters do it: the context of a message ends with its ack
	msg := message.NewMessage(d.UUID, d.Payload)
	if msg.UUID == "" {
		msg.UUID = d.Header.Get(producer.HeaderID)
	}
	if d.Header != nil { // it is ours
		msg.Metadata = message.Metadata(d.Header)
	}
	msg.SetContext(p)
	select {
	case out <- msg:
	case <-draining:
		return Decision{Action: RetryLater, Keep: true, Err: errSubscriberClosed}
	case <-each.Done():
		return Decision{Action: RetryLater, Keep: true, Err: context.Cause(each)}
	}
	select {
	case <-msg.Acked():
		if decision := p.decided.Load(); decision != nil && (decision.Action == RetryLater || decision.Action == Leave) {
			s.warned.Do(func() {
				slog.ErrorContext(each, "oncemill: a middleware outside of the guard makes a success of the guard's errors; such messages come again all the same: put consumer.PoisonQueue in place of Watermill's, and see consumer.Chain",
					"id", decision.ID, "topic", d.Topic, "error", decision.Err)
			})
			return *decision
		}
		return Decision{Action: Ack}
	case <-msg.Nacked():
	case <-each.Done():
		return Decision{Action: Leave, Err: context.Cause(each)}
	}
	if decision := p.decided.Load(); decision != nil && decision.Action != Ack { // else its outputs were not published
		return *decision
	}
	return Decision{Action: RetryLater, Delay: nackDelay(d.Count), Err: errNacked}
}

// errNacked says that nobody but the Router has decided.
var errNacked = errors.New("consumer: message nacked")

// Delays of messages that are nacked without a decision.
const (
	minNackDelay = 50 * time.Millisecond
	maxNackDelay = 10 * time.Second
)

// nackDelay is the delay after the nth delivery.
func nackDelay(n int) time.Duration {
	d := maxNackDelay
	if n < 8 {
		d = min(minNackDelay<<max(n-1, 0), maxNackDelay)
	}
	return d + jitter(d)
}
