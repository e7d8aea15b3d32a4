package stocknats

import (
	"context"
	"sync"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
)

// A fallback says how long a message is put off that was nacked without a decision: both adapters' Delay.
type fallback interface {
	WaitTime(deliveries uint64) time.Duration
}

// A steering is the NakDelay of an adapter, told before each nack what to answer. The adapter asks, without naming the
// message, right after it has seen the nack: nacks take turns, each until its question was asked. It is safe for any
// number of subscriptions.
type steering struct {
	fallback fallback

	turn sync.Mutex // held for a nack and its question

	mu      sync.Mutex
	pending *order
}

// An order is the answer to the next question.
type order struct {
	count uint64
	wait  time.Duration
	asked chan struct{}
}

// nack nacks a message of an adapter to be delivered again after wait, or to be terminated (wmnats.TermSignal). It
// reports whether the adapter has asked: it does not if it has given the message up.
func (s *steering) nack(msg *message.Message, count uint64, wait time.Duration) bool {
	s.turn.Lock()
	defer s.turn.Unlock()
	o := &order{count, wait, make(chan struct{})}
	s.set(o)
	defer s.set(nil)
	msg.Nack()
	select {
	case <-o.asked:
		return true
	case <-msg.Context().Done(): // both, when the adapter was quick
	}
	select {
	case <-o.asked:
		return true
	default:
		return false
	}
}

func (s *steering) set(o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = o
}

// WaitTime is how the adapters ask.
func (s *steering) WaitTime(deliveries uint64) time.Duration {
	s.mu.Lock()
	o := s.pending
	if o == nil || o.count != deliveries {
		s.mu.Unlock()
		return s.fallback.WaitTime(deliveries)
	}
	s.pending = nil
	s.mu.Unlock()
	close(o.asked)
	return o.wait
}

// growing is a delay that doubles with each delivery.
type growing struct{ min, max time.Duration }

// WaitTime returns the delay after the nth delivery.
func (g growing) WaitTime(deliveries uint64) time.Duration {
	d := g.min
	for ; deliveries > 1 && d < g.max; deliveries-- {
		d *= 2
	}
	return min(d, g.max)
}

// Delays that nobody has decided on.
var (
	nacked      = growing{50 * time.Millisecond, 10 * time.Second}
	undecodable = growing{time.Second, time.Minute}
)

// shortest keeps a delay of zero from being a bare nak, which a broker answers at once.
const shortest = 10 * time.Millisecond

// terminate is the delay that ends a message in both adapters.
const terminate = wmnats.TermSignal

// pause waits, and reports false if ctx or another end came first.
func pause(ctx context.Context, d time.Duration, other <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-other:
	}
	return false
}
