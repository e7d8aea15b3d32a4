package stocknats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// A subscriber stands between an adapter and a Router. The Router gets copies of the adapter's messages, with contexts
// of their own; what becomes of a copy is carried over to its original.
type subscriber struct {
	nc       *nats.Conn
	config   Config
	steering *steering
	inner    message.Subscriber
	prepare  func(ctx context.Context, topic string) error // before the adapter subscribes; may be nil

	lookEvery time.Duration // at the consumers

	mu      sync.Mutex
	closed  bool
	closing chan struct{}
	runs    sync.WaitGroup
	once    sync.Once
	err     error // of closing the adapter
}

func newSubscriber(nc *nats.Conn, config Config, nakDelay fallback) (*subscriber, error) {
	if nc == nil {
		return nil, errors.New("stocknats: nc is nil")
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	if nakDelay == nil {
		nakDelay = nacked
	}
	return &subscriber{nc: nc, config: config, steering: &steering{fallback: nakDelay}, lookEvery: lookEvery, closing: make(chan struct{})}, nil
}

// errClosed refuses what comes after Close.
var errClosed = errors.New("stocknats: Subscriber is closed")

// Subscribe subscribes the adapter with a context that outlives the caller's by the drain.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	g := &gate{ackWait: s.config.AckWait}
	if s.prepare != nil {
		if err := s.prepare(withGate(ctx, g), topic); err != nil {
			return nil, err
		}
	}
	detached, cancel := context.WithCancel(withGate(telemetry.Spanless(context.WithoutCancel(ctx)), g))
	in, err := s.inner.Subscribe(detached, topic)
	out := make(chan *message.Message)
	sub := &subscription{subscriber: s, topic: topic, gate: g, in: in, out: out, release: cancel, draining: make(chan struct{})}
	if err != nil {
		if in != nil { // messages may be on their way
			sub.end(context.WithoutCancel(ctx))
		}
		cancel()
		return nil, fmt.Errorf("stocknats: %w", err)
	}
	s.runs.Go(func() {
		defer close(out)
		defer cancel()
		sub.run(ctx)
	})
	return out, nil
}

// Close drains all subscriptions, and then closes the adapter with its connection.
func (s *subscriber) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	s.runs.Wait()
	s.once.Do(func() { s.err = s.inner.Close() })
	return s.err
}

// A subscription is one topic of a subscriber.
type subscription struct {
	*subscriber
	topic    string
	gate     *gate
	in       <-chan *message.Message // from the adapter
	out      chan<- *message.Message // to the Router
	release  context.CancelFunc      // ends the adapter's subscription
	draining chan struct{}

	received int // messages that came from the adapter
	working  sync.WaitGroup
	warned   sync.Once

	parking sync.Mutex
	parked  []*message.Message // those that the drain kept from the Router
}

// giveBackDelay is the delay of messages that were taken and not handed over: long enough for this process to be gone.
const giveBackDelay = 500 * time.Millisecond

// flushTimeout bounds how long the end of a subscription waits until the server has what was sent to it.
const flushTimeout = 5 * time.Second

// run works until ctx ends, or the subscriber is closed, and drains then.
func (s *subscription) run(ctx context.Context) {
	work, stopWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWork(nil)
	s.forward(ctx, work)
	close(s.draining)
	s.drain(stopWork)
	s.end(context.WithoutCancel(ctx))
}

// forward hands messages over until ctx ends, or the subscriber is closed, or nothing can come any more. The adapter
// bounds how many are at work, as it waits for each.
func (s *subscription) forward(ctx, work context.Context) {
	disconnected := s.nc.StatusChanged(nats.CLOSED)
	defer s.nc.RemoveStatusListener(disconnected)
	lost := make(chan error, 1)
	watching, stop := context.WithCancel(work)
	var watch sync.WaitGroup
	watch.Go(func() { lost <- s.watch(watching) })
	defer watch.Wait()
	defer stop()
	for !s.nc.IsClosed() {
		select {
		case <-ctx.Done():
			return
		case <-s.closing:
			return
		case <-disconnected:
		case err := <-lost:
			s.config.Logger.ErrorContext(ctx, "oncemill: the subscription ends: its consumer was deleted, or changed so that messages get lost, or nothing of it comes any more", "topic", s.topic, "error", err)
			return
		case <-s.gate.end():
			s.config.Logger.ErrorContext(ctx, "oncemill: the client has ended its subscription: the consumer is gone, or was changed so that the server refuses to be asked", "topic", s.topic)
			return
		case msg, ok := <-s.in:
			if !ok {
				s.config.Logger.ErrorContext(ctx, "oncemill: the adapter has ended its subscription", "topic", s.topic)
				return
			}
			s.received++
			s.working.Go(func() { s.handle(work, msg) })
		}
	}
	s.config.Logger.ErrorContext(ctx, "oncemill: the connection is closed, nothing can come any more", "topic", s.topic, "error", cmp.Or(s.nc.LastError(), nats.ErrConnectionClosed))
}

// errGrace is why a handler's context ends before the handler.
var errGrace = errors.New("stocknats: shutdown took longer than Config.Grace")

// drain waits until the handlers are done. What the adapter brings in the meantime is parked: it waits for an answer, and
// so takes nothing more.
func (s *subscription) drain(stopWork context.CancelCauseFunc) {
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		s.working.Wait()
	}()
	grace := time.NewTimer(s.config.Grace)
	defer grace.Stop()
	in := s.in
	for {
		select {
		case <-idle:
			return
		case <-grace.C:
			stopWork(errGrace)
		case msg, ok := <-in:
			if !ok {
				in = nil
				continue
			}
			s.received++
			s.park(msg)
		}
	}
}

// end ends the adapter's subscription when no message is on its way to the adapter, and gives back what was parked: not
// before, as it would come back to this process.
func (s *subscription) end(ctx context.Context) {
	for passed := s.gate.close(); s.received < passed; s.received++ {
		msg, ok := <-s.in
		if !ok {
			break
		}
		s.park(msg)
	}
	for _, msg := range s.parked {
		s.giveBack(msg)
	}
	s.release()
	for msg := range s.in {
		s.giveBack(msg)
	}
	if err := s.nc.FlushTimeout(flushTimeout); err != nil {
		s.config.Logger.WarnContext(ctx, "oncemill: acks may not have reached the server", "topic", s.topic, "error", err)
	}
}

// park keeps a message, which the adapter waits for, to be given back.
func (s *subscription) park(msg *message.Message) {
	s.parking.Lock()
	defer s.parking.Unlock()
	s.parked = append(s.parked, msg)
}

// giveBack naks a message that nobody works on.
func (s *subscription) giveBack(msg *message.Message) {
	if from, _, ok := unmark(msg); ok {
		s.tell(from, nakBody(giveBackDelay))
	}
}

// tell sends an answer past the adapter. What is lost is made up for by the ack deadline.
func (s *subscription) tell(from origin, body string) {
	if err := s.nc.Publish(from.Reply, []byte(body)); err != nil {
		s.config.Logger.Warn("oncemill: cannot answer the server", "topic", s.topic, "stream", from.Stream, "sequence", from.Sequence, "error", err)
	}
}

// ackWait is the ack deadline of the subscription's consumer.
func (s *subscription) ackWait() time.Duration { return cmp.Or(s.gate.deadline(), s.config.AckWait) }
