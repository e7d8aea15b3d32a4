package oncewatermill

import (
	"cmp"
	"context"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/contexts"
	"github.com/oncemill/oncemill/producer"
)

// A passage is a delivery's way from a Source through a Router: the context of its message. A Router only acks and
// nacks; by the passage, the guard tells the subscription what it has decided.
type passage struct {
	contexts.Child
	cancel       context.CancelFunc
	delivery     consumer.Delivery
	subscription *subscription
	before       *consumer.Delivery                // as it came, while nobody knows whether messages are changed
	decided      atomic.Pointer[consumer.Decision] // of the middleware, other than Ack; nil: none

	ahead  atomic.Pointer[consumer.Ahead] // the delivery has been claimed, and has not come to the middleware
	later  atomic.Bool                    // the outcome is on its way to the store
	stored chan consumer.Decision         // what the store has made of it
}

// newPassage makes a message of a delivery. The passage has to begin before anybody gets the message.
func (s *subscription) newPassage(d consumer.Delivery) (*passage, *message.Message) {
	d.UUID = cmp.Or(d.UUID, d.Header.Get(producer.HeaderID))
	p := &passage{delivery: d, subscription: s}
	msg := message.NewMessage(d.UUID, d.Payload)
	if d.Header != nil { // it is ours
		msg.Metadata = message.Metadata(d.Header)
	}
	msg.SetContext(p)
	return p, msg
}

// begin makes the passage a context. It ends with cancel.
func (p *passage) begin(ctx context.Context) {
	ctx, p.cancel = context.WithCancel(ctx)
	p.Child = contexts.Under(ctx)
}

type passageKey struct{}

// Value implements context.Context.
func (p *passage) Value(key any) any {
	if key == (passageKey{}) {
		return p
	}
	return p.Child.Value(key)
}

// passageOf returns the passage of a message with this context, or nil.
func passageOf(ctx context.Context) *passage {
	p, _ := ctx.Value(passageKey{}).(*passage)
	return p
}

// pastPassage returns the context for a handler: some brokers keep contexts, and what the handler publishes is another
// message.
func pastPassage(ctx context.Context) context.Context {
	if passageOf(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, passageKey{}, (*passage)(nil))
}

// claimed returns what was claimed for a message that has come to the middleware, once. It is nil if the claim was
// given back, or none was made.
func (p *passage) claimed(now consumer.Delivery) *consumer.Ahead {
	if p == nil {
		return nil
	}
	s := p.subscription
	if !s.reached.Load() { // all messages share it
		s.reached.Store(true)
	}
	if p.before != nil {
		if p.before.Handler != now.Handler {
			s.misnamed.Do(func() {
				s.log.Warn("oncemill: the Router and its subscriber call a handler by two names: its records are kept "+
					"under the Router's, and its messages are not claimed ahead; add it with oncewatermill.AddHandler",
					"handler", now.Handler, "subscriber", p.before.Handler, "topic", s.topic)
			})
		}
		if same, known := s.once.Same(*p.before, now); known && same {
			s.ahead.CompareAndSwap(unknown, ahead)
		} else if known {
			s.ahead.Store(late)
		}
	}
	return p.ahead.Swap(nil)
}
