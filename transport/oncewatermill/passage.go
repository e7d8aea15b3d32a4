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
	message      *message.Message
	subscription *subscription
	owner        atomic.Int32                      // who guards the delivery
	decided      atomic.Pointer[consumer.Decision] // of the middleware, other than Ack; nil: none

	ticket atomic.Pointer[consumer.Ticket] // the delivery has been claimed, and nobody has processed it yet
	later  atomic.Bool                     // the outcome is on its way to the store
	stored chan consumer.Decision          // what the store has made of it
}

const (
	noOwner           int32 = iota // the middleware has not seen it, yet
	ownedByMiddleware              // it has
	// the middleware must not guard it: the subscription does, or the message is acknowledged
	ownedBySubscriber
	handedBack // by the middleware, which the subscription took for missing
)

// newPassage makes a message of a delivery, with this header and payload. The passage has to begin before anybody gets
// the message.
func (s *subscription) newPassage(
	d consumer.Delivery, header producer.Header, payload []byte, owner int32,
) (*passage, *message.Message) {
	d.UUID = cmp.Or(d.UUID, header.Get(producer.HeaderID))
	p := &passage{delivery: d, subscription: s}
	p.owner.Store(owner)
	msg := message.NewMessage(d.UUID, payload)
	if header != nil { // it is ours
		msg.Metadata = message.Metadata(header)
	}
	p.message = msg
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

// enter reports whether the delivery is the middleware's to guard.
func (p *passage) enter() bool {
	return p.owner.CompareAndSwap(noOwner, ownedByMiddleware) || p.owner.Load() == ownedByMiddleware
}

// claimed returns the delivery's ticket, once, if it fits what now comes to the middleware. It also decides whether to
// claim further messages before they come here: not if a middleware outside has changed one.
func (p *passage) claimed(d consumer.Delivery) *consumer.Ticket {
	if p == nil {
		return nil
	}
	if !p.subscription.reached.Load() { // all messages share it
		p.subscription.reached.Store(true)
	}
	ahead, name := &p.subscription.ahead, d.Handler
	before, t := ahead.Load(), p.ticket.Swap(nil)
	if t != nil && p.delivery.Handler != name { // there is another handler than before
		t.GiveBack(p)
		t = nil
	}
	fits, same := true, true
	switch was := p.delivery; {
	case t != nil:
		fits, same = t.Fit(d)
	case before == nil || *before != "":
		was.Handler = name
		var known bool
		if same, known = p.subscription.once.Same(was, d); !known {
			return nil
		}
	}
	switch {
	case !same:
		ahead.Store(new(string))
	case before == nil || *before != "" && *before != name:
		ahead.CompareAndSwap(before, &name)
	}
	if !fits {
		t.GiveBack(p)
		return nil
	}
	return t
}

// leave reports whether the delivery, which is acknowledged, has passed the middleware. One that has not must not enter
// it now.
func (p *passage) leave() bool { return !p.owner.CompareAndSwap(noOwner, ownedBySubscriber) }

// handBack says to the subscription that guards the delivery that there is a middleware for that. It reports false if
// that is too late, or the message another one, which has the context of this.
func (p *passage) handBack(msg *message.Message) bool {
	if p.message != msg || isClosed(msg.Acked()) {
		return false
	}
	p.owner.Store(handedBack)
	return true
}
