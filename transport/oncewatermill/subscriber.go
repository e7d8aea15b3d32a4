package oncewatermill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/pace"
)

// longestAhead is how long a message keeps the claim that was made ahead for it, while no middleware has it.
const longestAhead = 2 * time.Second

// NewSubscriber returns a Watermill Subscriber over a source, for the handler of a name that [Middleware] guards. Use
// [AddHandler] or [AddConsumerHandler], which make one, unless something else adds handlers to the Router, such as
// processors of package cqrs. The source carries out everything that the middleware decides: delays, rejections,
// deliveries that are left alone. When an outer middleware nacks, a message is delivered again after a delay that grows
// with its deliveries. An outer middleware may turn an error of the guard into success, as Watermill's own PoisonQueue
// does. The message is delivered again all the same, with an error in the log, unless the guard has rejected it for
// good.
//
// Each message is claimed, under the handler's name, before it is handed to the Router. A middleware outside of
// Middleware may change the IDs or payloads of messages, as one that decrypts them. Then no message is claimed before
// it comes to Middleware. Let it change all or none: a message that was claimed before its payload was changed keeps
// the other fingerprint, and its redelivery may be a mismatch. A middleware outside may also hold a message up, as
// Watermill's Throttle does: a claim is given back when Middleware has not had its message within two seconds, and made
// again then.
//
// Subscriptions of one topic share its messages, as the members of a group do, and a second one is a warning. If
// several handlers must each get all messages, give each a Subscriber of its own, over a source with another consumer
// (natsjs) or group (franz).
//
// As many messages are delivered at once as the source is configured for. A message's UUID is the delivery's, or else
// its message ID. Subscribe returns the error of Source.Check. When the source cannot go on, the subscription logs the
// error and begins again after 5 to 10 s, until it is closed.
//
// The end of Subscribe's context, or Close, begins the drain that Source.Run describes. Messages that a handler has
// keep their contexts, and their acks reach the broker. Then the channels are closed, and Close returns. If a handler
// is still running when the source's grace is over, its context is cancelled, and only the Router waits for it.
func NewSubscriber(source consumer.Source, handler string) (message.Subscriber, error) {
	if isnil.Nil(source) {
		return nil, errors.New("oncewatermill: NewSubscriber needs a Source")
	}
	once := source.Processor()
	if once == nil {
		return nil, errors.New("oncewatermill: NewSubscriber needs a Source that was made with a Processor")
	}
	if problem := consumer.HandlerProblem(handler); problem != "" {
		return nil, fmt.Errorf("oncewatermill: NewSubscriber's handler name %s", problem)
	}
	return &subscriber{
		source: source, once: once, handler: handler, log: once.Config().Policy.Logger, closing: make(chan struct{}),
		topics: map[string]int{},
	}, nil
}

type subscriber struct {
	source  consumer.Source
	once    *consumer.Processor
	handler string
	log     *slog.Logger
	warned  sync.Once
	closing chan struct{}

	mu     sync.Mutex
	closed bool
	topics map[string]int // subscriptions that go on
	runs   sync.WaitGroup
}

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
		s.log.WarnContext(ctx,
			"oncemill: a topic is subscribed to twice: the subscriptions share its messages, and each is handled by "+
				"one of them; handlers that are to get all of them need sources of their own, with another "+
				"consumer or group", "topic", topic)
	}
	ctx, cancel := context.WithCancel(ctx)
	s.runs.Go(func() {
		defer cancel()
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
	})
	s.once.Announce(s.handler)
	out := make(chan *message.Message)
	s.runs.Go(func() {
		defer close(out)
		defer cancel()
		one := &subscription{subscriber: s, topic: topic, out: out, draining: ctx.Done()}
		one.passes.Keep(1)
		one.run(ctx)
		one.passes.Release()
		one.passes.Wait()
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

// A subscription is one of a topic, for one handler.
type subscription struct {
	*subscriber
	topic    string
	out      chan<- *message.Message
	draining <-chan struct{}

	reached atomic.Bool  // a message has come to the middleware
	ahead   atomic.Int32 // whether messages are claimed before the Router has them
	missing sync.Once    // says that the middleware may be missing

	misnamed sync.Once // says that the handler has two names

	passes batch.Pool // messages on their way through the Router

	idle   sync.Mutex
	timers []*time.Timer // of longestAhead, which nobody uses
}

// run keeps a subscription going until ctx ends.
func (s *subscription) run(ctx context.Context) {
	for {
		err := s.source.Run(ctx, s.topic, s.deliver)
		if ctx.Err() != nil {
			if err != nil {
				s.log.ErrorContext(ctx, "oncemill: subscription did not end well", "topic", s.topic, "error", err)
			}
			return
		}
		after := 5*time.Second + rand.N(5*time.Second)
		s.log.ErrorContext(ctx, "oncemill: subscription cannot go on; it begins again", "topic", s.topic, "error", err,
			"after", after)
		pace.Sleep(ctx, after)
	}
}

// deliver claims a message and begins to hand it to the Router.
func (s *subscription) deliver(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
	d.Handler = s.handler
	switch s.ahead.Load() {
	case ahead:
		p := s.newPassage(d, done)
		p.early = true
		claimed := p.delivery
		claimed.Message = p.message
		s.once.StartAhead(ctx, claimed, (*arrival)(p))
	case unknown:
		before := d
		d.Header, d.Payload = maps.Clone(d.Header), bytes.Clone(d.Payload)
		p := s.newPassage(d, done)
		p.before = &before
		p.begin(ctx)
	default:
		s.newPassage(d, done).begin(ctx)
	}
}

// Whether messages are claimed ahead: once one has come to the middleware as it was. Another middleware may change them
// before, and then they are claimed when they come to ours.
const (
	unknown int32 = iota
	ahead
	late
)

// Do hands the message to the Router, and tells the source what becomes of it.
func (p *passage) Do() {
	ctx, s := p.outside, p.subscription
	var late <-chan time.Time // then the middleware claims
	if p.early {
		timer := s.timer()
		defer s.spare(timer)
		late = timer.C
	}
	if err := p.hand(late); err != nil {
		p.giveBack(ctx)
		p.tell(consumer.Decision{Action: consumer.RetryLater, Keep: true, Err: err})
		return
	}
	err := p.answered(late)
	if err == nil && p.later.Load() { // else the message was acknowledged early
		p.acked()
		return
	}
	p.giveBack(context.WithoutCancel(ctx))
	decision := p.decided.Load()
	switch {
	case err == nil:
		p.tell(s.acked(ctx, p))
	case !errors.Is(err, errNacked):
		p.tell(consumer.Decision{Action: consumer.Leave, Err: err})
	case decision != nil:
		p.tell(*decision)
	default:
		p.tell(consumer.Decision{Action: consumer.RetryLater, Delay: nackDelay(p.delivery.Count), Err: err})
	}
}

// timer returns one of longestAhead. It is used again for other messages.
func (s *subscription) timer() *time.Timer {
	s.idle.Lock()
	defer s.idle.Unlock()
	last := len(s.timers) - 1
	if last < 0 {
		return time.NewTimer(longestAhead)
	}
	t := s.timers[last]
	s.timers = s.timers[:last]
	t.Reset(longestAhead)
	return t
}

// spare takes a timer back.
func (s *subscription) spare(t *time.Timer) {
	t.Stop()
	s.idle.Lock()
	defer s.idle.Unlock()
	s.timers = append(s.timers, t)
}

// hand gives the message to the Router, unless its source has begun to stop. It returns why the Router has not taken
// it, or nil.
func (p *passage) hand(late <-chan time.Time) error {
	s, stopping := p.subscription, p.delivery.Stopping
	select { // as the next one may choose any that is ready
	case <-s.draining:
		return errSubscriberClosed
	case <-stopping:
		return errSubscriberClosed
	default:
	}
	for {
		select {
		case s.out <- p.message:
			return nil
		case <-s.draining:
			return errSubscriberClosed
		case <-stopping:
			return errSubscriberClosed
		case <-p.outside.Done():
			return context.Cause(p.outside)
		case <-late:
			s.passes.Go(func() { p.giveBack(context.WithoutCancel(p.outside)) })
		}
	}
}

// answered waits for what the Router says of the message: nil for an ack.
func (p *passage) answered(late <-chan time.Time) error {
	s := p.subscription
	for {
		select {
		case <-p.message.Acked():
			return nil
		case <-p.message.Nacked():
			return errNacked
		case <-p.outside.Done():
			return context.Cause(p.outside)
		case <-late:
			s.passes.Go(func() { p.giveBack(context.WithoutCancel(p.outside)) })
		}
	}
}

// giveBack gives the claim of a message back that the middleware has not had.
func (p *passage) giveBack(ctx context.Context) {
	if a := p.ahead.Swap(nil); a != nil {
		a.GiveBack(ctx)
	}
}

// acked is what to do with a message that was acknowledged.
func (s *subscription) acked(ctx context.Context, p *passage) consumer.Decision {
	if decision := p.decided.Load(); decision != nil && (decision.Action == consumer.RetryLater ||
		decision.Action == consumer.Leave) {
		s.warned.Do(func() {
			s.log.ErrorContext(ctx,
				"oncemill: a middleware outside of the guard turns the guard's errors into successes; such "+
					"messages come again all the same: set consumer.Config.DeadLetters in place of a PoisonQueue",
				"id", decision.ID, "topic", p.delivery.Topic, "error", decision.Err)
		})
		return *decision
	}
	if !s.reached.Load() { // once it has, this is what a middleware outside leaves out, as a filter does
		s.missing.Do(func() {
			s.log.ErrorContext(ctx,
				"oncemill: message was acknowledged that the guard has not seen: add handlers with "+
					"oncewatermill.AddHandler, or oncewatermill.Middleware to the Router; nothing is guarded until "+
					"then, unless a middleware outside has left the message out",
				"topic", s.topic, "handler", s.handler)
		})
	}
	return consumer.Decision{Action: consumer.Ack}
}
