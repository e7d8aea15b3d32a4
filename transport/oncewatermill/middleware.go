package oncewatermill

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/producer"
)

// Middleware guards handlers in a Watermill Router, over any subscriber; over a [consumer.Source] use [AddHandler]. Add
// it once, to the Router or to single handlers. Records are kept
// under the Router's name of the handler. See Chain for its place among Retry, Timeout and PoisonQueue. It panics
// without a Processor. Without consumer.Config.DeadLetters it logs a warning. Call Processor.Close after the Router has
// stopped.
//
// What the handler returns is stored with the outcome and stamped with IDs that follow from the consumed message. The
// Router publishes it after the middleware has returned. The claim is held until the Router acknowledges the message,
// which says that the outputs are published. If it does not, a redelivery publishes them without running the handler.
//
// This needs a publisher that returns from Publish only when the broker has the message. No middleware outside this one
// may change the outputs. An output's context is not stored: put what its publisher has to know into its metadata.
//
// A handler that nacks its message has failed, also if it returns nil. Inside this middleware Watermill's own Retry
// sometimes makes a success of a handler that nacks and returns an error. The guard does not believe it, and the effect
// is made again: nack or return an error, or use Retry of this package. A message that has been nacked before is not
// handled. The same goes for one that comes again after any answer but an ack, as by a Retry outside: the guard
// has decided when it comes again.
//
// The middleware does not see the Router begin and end: over a subscriber that is not of this package the Router's own
// logger says it ("Starting handler", "Router closed").
//
// A duplicate of a success returns nil. Everything else that must not be acknowledged returns an error, which the
// Router answers with a nack. It is one of those that oncemill.Guard.Run lists, or an *oncemill.Error with StatusDone
// when there is no consumer.Config.DeadLetters.
func Middleware(once *consumer.Processor) message.HandlerMiddleware {
	if isnil.Nil(once) {
		panic("oncewatermill: Middleware needs a Processor")
	}
	return newGuard(once, false).middleware
}

// A guard is a Processor in a Router.
type guard struct {
	once     *consumer.Processor
	config   consumer.Config // of once
	poisoned bool            // it stands inside a PoisonQueue, which has what is rejected

	begun, retried, passed sync.Once // of what they say
}

func newGuard(once *consumer.Processor, poisoned bool) *guard {
	return &guard{once: once, config: once.Config(), poisoned: poisoned}
}

func (g *guard) middleware(next message.HandlerFunc) message.HandlerFunc {
	if g.config.DeadLetters == nil && !g.config.Policy.Shadow && !g.poisoned {
		g.begun.Do(func() {
			g.config.Policy.Logger.Warn("oncemill: no Config.DeadLetters: messages that fail for good, have no usable ID " +
				"or other content under a known ID are rejected; unless a poison queue outside of the middleware " +
				"keeps them, only this log has them")
		})
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		p := passageOf(msg.Context())
		if !g.config.Policy.Shadow && answeredBefore(msg, p) {
			g.say(&g.retried, msg, "oncemill: a message was given to the guard again before it was nacked, as by a "+
				"Retry outside of the guard: it is not handled, and comes again as the guard has decided; move "+
				"Retry inside, see oncewatermill.Chain")
			return nil, orderError("a message was given to the guard again before it was nacked: move Retry inside")
		}
		return g.handle(msg, p, next)
	}
}

// say says once what is wrong around the guard.
func (g *guard) say(once *sync.Once, msg *message.Message, what string) {
	once.Do(func() {
		ctx := msg.Context()
		g.config.Policy.Logger.ErrorContext(ctx, what, "uuid", msg.UUID, "handler", message.HandlerNameFromCtx(ctx))
	})
}

type answeredKey struct{}

// answeredBefore reports whether a guard has said of this very message that it must not be acknowledged.
func answeredBefore(msg *message.Message, p *passage) bool {
	return p != nil && p.decided.Load() != nil || msg.Context().Value(answeredKey{}) == msg
}

// handle guards a message to its handler.
func (g *guard) handle(msg *message.Message, p *passage, next message.HandlerFunc) ([]*message.Message, error) {
	ctx := msg.Context()
	var d consumer.Delivery
	if p != nil && isClosed(msg.Acked()) {
		g.say(&g.passed, msg, "oncemill: message does not come to the middleware before it is acknowledged: put "+
			"nothing outside of the guard that acknowledges messages, such as InstantAck; if their handlers "+
			"fail, they are lost")
		ctx = context.WithoutCancel(ctx) // it ends with the ack
	}
	if p != nil { // a Router may have another name for the topic
		d = p.delivery
	} else {
		d.Topic = message.SubscribeTopicFromCtx(ctx)
	}
	d.Handler, d.UUID, d.Message = message.HandlerNameFromCtx(ctx), msg.UUID, msg
	d.Header, d.Payload = producer.Header(msg.Metadata), msg.Payload
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			panic(v) // somebody outside may make an error of it
		}
		msg.Nack() // the handler has ended its goroutine, which is the Router's
	}()
	ahead := p.claimed(d)
	var outputs *[]*message.Message
	if ahead != nil { // one call has it; others with the passage's context have outputs of their own
		outputs = &p.outputs
	} else {
		outputs = new([]*message.Message)
	}
	handler := func(ctx context.Context) (_ []producer.Message, err error) {
		if *outputs, err = g.run(ctx, msg, next); err != nil || g.config.Policy.Shadow {
			return nil, err
		}
		return outgoing(ctx, *outputs)
	}
	if ahead == nil {
		decision := g.once.ProcessOutputs(ctx, d, handler)
		returned = true
		return g.answer(msg, p, d, decision, *outputs)
	}
	later, same := ahead.Begin(ctx, d, handler)
	returned = true
	if !same {
		p.subscription.ahead.Store(late)
	}
	if later { // the Router's ack says that it is handled, and the broker's follows when that is stored
		p.later.Store(true)
		return nil, nil
	}
	return g.answer(msg, p, d, p.outcome, *outputs)
}

// run runs the handler on its message and undoes afterwards what it did to it. Adapters that resend in the process send
// a copy, which must be the same message again. Payload and metadata are the handler's own, because outputs may share
// them, and goroutines that outlive it may write to them.
func (g *guard) run(
	ctx context.Context, msg *message.Message, next message.HandlerFunc,
) (outputs []*message.Message, err error) {
	uuid, metadata, payload, before := msg.UUID, msg.Metadata, msg.Payload, msg.Context()
	defer func() {
		msg.UUID, msg.Metadata, msg.Payload = uuid, metadata, payload
		msg.SetContext(before)
	}()
	if isClosed(msg.Nacked()) && !g.config.Policy.Shadow { // it comes again, and of a second nack nobody would know
		return nil, oncemill.Uncounted(oncemill.NoEffect(errNackedBefore))
	}
	msg.Metadata, msg.Payload = maps.Clone(metadata), bytes.Clone(payload)
	msg.SetContext(pastPassage(ctx))
	outputs, err = next(msg)
	if err == nil && isClosed(msg.Nacked()) && !g.config.Policy.Shadow {
		return nil, errHandlerNacked
	}
	for i, m := range outputs {
		if m == msg { // as the handler leaves it
			outputs[i] = m.CopyWithContext()
		}
	}
	return outputs, err
}

// answer carries a decision out as far as a Router lets a middleware do so.
func (g *guard) answer(
	msg *message.Message, p *passage, d consumer.Delivery, decision consumer.Decision, outputs []*message.Message,
) ([]*message.Message, error) {
	ctx := msg.Context()
	publication := decision.Result.Publication
	switch {
	case decision.Action == consumer.Ack && publication != nil:
		if err := g.once.Watch(ctx, d, publication, msg.Acked(), msg.Nacked()); err != nil {
			return nil, err
		}
		return produced(publication.Messages(), outputs), nil
	case decision.Action == consumer.Ack && decision.Result.Bypassed:
		if !g.config.Policy.Shadow {
			outputs = withoutOrders(outputs)
		}
		return outputs, nil
	case decision.Action == consumer.Ack:
		return nil, nil
	case g.config.Policy.Shadow:
		return outputs, decision.Err
	}
	return nil, g.refuse(msg, p, decision)
}

// refuse has a message not acknowledged, and returns the error for the Router.
func (g *guard) refuse(msg *message.Message, p *passage, decision consumer.Decision) error {
	ctx := msg.Context()
	status := decision.Result.Status
	busy := status == oncemill.StatusBusy || status == oncemill.StatusNotDue
	acked := isClosed(msg.Acked()) // which nothing takes back
	if decision.Action == consumer.RetryLater && !busy && acked {
		g.config.Policy.Logger.ErrorContext(ctx,
			"oncemill: message was acknowledged before it had succeeded, by its handler or a middleware such as "+
				"InstantAck: its broker will not deliver it again",
			"id", decision.ID, "uuid", msg.UUID, "topic", message.SubscribeTopicFromCtx(ctx), "error", decision.Err)
	}
	poison := g.poisoned && final(decision.Err)
	if poison && decision.ID != "" && producer.Header(msg.Metadata).Get(producer.HeaderID) == "" {
		msg.Metadata.Set(producer.HeaderID, decision.ID) // the poison's: where it was found need not be carried along
	}
	if p != nil {
		if !acked {
			p.decided.Store(&decision) // it is for the source to delay
		}
		return decision.Err
	}
	msg.SetContext(context.WithValue(ctx, answeredKey{}, msg))
	// A Router can only nack, and most adapters deliver again at once. A lease, or a retry that is not due, makes the
	// next delivery wait, if the Processor waits. That spends the delay; otherwise it is spent here, such as for a run
	// that the store knows nothing of. Poison is acknowledged.
	waits := busy || status == oncemill.StatusRetry && !decision.Result.Bypassed
	if !poison && (g.config.MaxWait == consumer.NoWait || !waits) {
		pace.Sleep(ctx, g.beforeNack(decision))
	}
	return decision.Err
}

// beforeNack is how long to keep a delivery before its nack: at most the Processor's MaxWait, or without one
// Backoff.Min, but no longer than most.
func (g *guard) beforeNack(decision consumer.Decision) time.Duration {
	const most = 10 * time.Second
	bound := g.config.MaxWait
	if bound == consumer.NoWait {
		bound = min(g.config.Policy.Backoff.Min, most)
	}
	if decision.Action == consumer.RetryLater {
		return min(decision.Delay, bound)
	}
	return bound
}

// maxNackDelay is the longest delay of a message that is nacked without a decision.
const maxNackDelay = 10 * time.Second

// nackDelay is the delay after the nth delivery.
func nackDelay(n int) time.Duration {
	d := min(50*time.Millisecond<<min(max(n-1, 0), 8), maxNackDelay)
	return d + rand.N(d/10)
}

func isClosed(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}
