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
	contexts.Lazy
	subscription *subscription
	outside      context.Context // the delivery's own
	delivery     consumer.Delivery
	message      *message.Message
	done         func(consumer.Decision)           // what becomes of it
	before       *consumer.Delivery                // as it came, while nobody knows whether messages are changed
	decided      atomic.Pointer[consumer.Decision] // of the middleware, other than Ack; nil: none
	outputs      []*message.Message                // of the handler

	early bool                           // it is claimed before the Router has it
	ahead atomic.Pointer[consumer.Ahead] // the delivery has been claimed, and has not come to the middleware

	outcome consumer.Decision // what the store has made of it
	later   atomic.Bool       // the outcome is on its way to the store
	ends    atomic.Int32      // of both: its ack, and the outcome's way
}

// newPassage makes a message of a delivery. The passage has to begin before anybody gets the message.
func (s *subscription) newPassage(d consumer.Delivery, done func(consumer.Decision)) *passage {
	d.UUID = cmp.Or(d.UUID, d.Header.Get(producer.HeaderID))
	msg := message.NewMessage(d.UUID, d.Payload)
	if d.Header != nil { // it is ours
		msg.Metadata = message.Metadata(d.Header)
	}
	p := &passage{subscription: s, delivery: d, message: msg, done: done}
	msg.SetContext(p)
	return p
}

// begin makes the passage a context, and takes it on its way.
func (p *passage) begin(ctx context.Context) {
	p.outside = ctx
	p.Begin(ctx)
	p.subscription.passes.Run(p)
}

// An arrival is a passage whose delivery is claimed before the Router has it.
type arrival passage

// Claimed takes the claim, or another answer.
func (a *arrival) Claimed(ctx context.Context, claim *consumer.Ahead) {
	p := (*passage)(a)
	p.ahead.Store(claim)
	p.begin(ctx)
}

// Decided takes what the store has made of the outcome.
func (a *arrival) Decided(outcome consumer.Decision) {
	p := (*passage)(a)
	p.outcome = outcome
	p.ended()
}

// acked takes the ack of a message whose outcome is on its way to the store.
func (p *passage) acked() {
	p.subscription.passes.Keep(1)
	p.ended()
}

// ended ends a passage whose ack and whose outcome are both there.
func (p *passage) ended() {
	if p.ends.Add(1) == 2 {
		defer p.subscription.passes.Release()
		p.tell(p.outcome)
	}
}

// tell tells the source what becomes of the delivery. The context of a message ends with its ack, as that of
// Watermill's adapters does.
func (p *passage) tell(d consumer.Decision) {
	p.done(d)
	p.Cancel(nil)
}

// Value implements context.Context.
func (p *passage) Value(key any) any {
	if key == (contexts.Outside{}) {
		return p
	}
	return p.Lazy.Value(key)
}

// passageOf returns the passage of a message with this context, or nil.
func passageOf(ctx context.Context) *passage {
	p, _ := ctx.Value(contexts.Outside{}).(*passage)
	return p
}

// pastPassage returns the context for a handler that may be unguarded: some brokers keep contexts, and what the handler
// publishes is another message.
func pastPassage(ctx context.Context) context.Context {
	if passageOf(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, contexts.Outside{}, (*passage)(nil))
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
