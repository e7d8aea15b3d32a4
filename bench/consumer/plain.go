package main

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/batch"
)

// plainSubscriber hands what a source delivers to a Router, and acknowledges what the Router does: nobody claims
// anything. It has goroutines as oncewatermill's has them.
type plainSubscriber struct {
	source  consumer.Source
	closing chan struct{}
	running sync.WaitGroup
	passes  batch.Pool // messages on their way through the Router
}

func newPlainSubscriber(source consumer.Source) *plainSubscriber {
	return &plainSubscriber{source: source, closing: make(chan struct{})}
}

// Subscribe implements message.Subscriber.
func (s *plainSubscriber) Subscribe(_ context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	ctx, stop := context.WithCancel(context.Background())
	s.running.Go(func() { <-s.closing; stop() })
	s.running.Go(func() {
		defer close(out)
		s.passes.Keep(1)
		defer s.passes.Release()
		_ = s.source.Run(ctx, topic, func(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
			s.passes.Go(func() { s.pass(ctx, out, d, done) })
		})
	})
	return out, nil
}

func (s *plainSubscriber) pass(
	ctx context.Context, out chan<- *message.Message, d consumer.Delivery, done func(consumer.Decision),
) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	msg := message.NewMessage(d.UUID, d.Payload)
	msg.Metadata = message.Metadata(d.Header)
	msg.SetContext(ctx)
	decision := consumer.Decision{Action: consumer.RetryLater}
	select {
	case out <- msg:
	case <-s.closing:
		done(decision)
		return
	}
	select {
	case <-msg.Acked():
		decision.Action = consumer.Ack
	case <-msg.Nacked():
	case <-ctx.Done():
	}
	done(decision)
}

// Close implements message.Subscriber.
func (s *plainSubscriber) Close() error {
	close(s.closing)
	s.running.Wait()
	return nil
}
