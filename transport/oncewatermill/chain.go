package oncewatermill

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/headers"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/producer"
)

// A Step is one middleware of a chain, as made by Guarded, PoisonQueue, Retry, Timeout and Other.
type Step struct {
	name       string
	middleware message.HandlerMiddleware
	err        error
	once       *consumer.Processor // of Guarded
}

// Names of steps that Chain knows.
const (
	guardStep   = "Guarded"
	poisonStep  = "PoisonQueue"
	retryStep   = "Retry"
	timeoutStep = "Timeout"
)

// Guarded is the step at which a Processor guards the steps inside it.
func Guarded(once *consumer.Processor) Step {
	if once == nil {
		return Step{err: orderError("Guarded needs a Processor")}
	}
	return Step{name: guardStep, middleware: newGuard(once, false).middleware, once: once}
}

// PoisonQueue publishes to a topic what the guard rejects for good, and lets it be acknowledged: stored failures,
// unknown outcomes, mismatches and messages without an ID. Errors that a redelivery mends pass it by. It belongs
// outside the guard.
//
// consumer.Config.DeadLetters is the stronger way, and Chain refuses both together. A PoisonQueue may publish several
// copies, and consumer.Rerun cannot use them. If poison is sent back as it is, as by Watermill's Requeuer, it is a
// duplicate of the stored failure. It becomes poison again at once, until Policy.FailureWindow is over.
//
// Do not guard a Requeuer or another handler of poison. When a message comes to it a second time, or from two handlers,
// it is a duplicate, and lost. If other groups get the messages that are sent back, they must find IDs in the same
// places. A group that knew the message by another ID takes it for a new one.
//
// Over a Source use consumer.Config.DeadLetters. This PoisonQueue leaves out headers of the NATS server ("Nats-…"),
// which a stream takes for orders: with an equal Nats-Msg-Id it drops the message. If the ID was found elsewhere, the
// poison has it as oncemill-id. All poison has a number of its own as oncemill-generation, by which a natsjs.Publisher
// tells it from other copies.
//
// A publisher of watermill-nats must not have TrackMsgID or TrackMessageID. Headers that a publisher of this module may
// have refused are escaped as in a dead letter, and an unusable ID is replaced.
func PoisonQueue(pub message.Publisher, topic string) Step {
	if isnil.Nil(pub) {
		return Step{err: orderError("PoisonQueue needs a publisher")}
	}
	mw, err := middleware.PoisonQueueWithFilter(poisonPublisher{pub}, topic, final)
	return Step{name: poisonStep, middleware: unlessPoisoned(mw), err: err}
}

// A poisonPublisher publishes messages as poison: without orders, and as deliberate copies, which a stream that knows
// messages by their IDs tells apart. Poison of another handler, or a message that was sent back, may be there already.
type poisonPublisher struct{ message.Publisher }

func (p poisonPublisher) Publish(topic string, messages ...*message.Message) error {
	messages = withoutOrders(messages)
	for _, msg := range messages {
		msg.Metadata.Set(producer.HeaderGeneration, strconv.Itoa(int(rand.Int32())))
		msg.Metadata.Set(middleware.ReasonForPoisonedKey,
			headers.Text(msg.Metadata.Get(middleware.ReasonForPoisonedKey), dedupstore.MaxReason))
	}
	err := p.Publisher.Publish(topic, messages...)
	// the message would come again for it, for ever
	if _, refused := errors.AsType[*dedupstore.InvalidError](err); refused {
		for _, msg := range messages {
			escapeHeader(msg)
		}
		err = p.Publisher.Publish(topic, messages...)
	}
	return err
}

// escapeHeader makes a message that each publisher of this module takes. It has usable IDs or none. It has no headers
// that some broker does not carry, or that have a meaning and occur in several spellings.
func escapeHeader(msg *message.Message) {
	header := producer.Header(msg.Metadata)
	_, noID := producer.ExtractMessageID(producer.Incoming{Header: header})
	if _, err := producer.ExtractWatermillUUID(producer.Incoming{UUID: msg.UUID}); err != nil {
		msg.UUID = "" // it gets a new one
	}
	msg.Metadata = message.Metadata{}
	for name, value := range header {
		lower := strings.ToLower(name)
		keep := headers.Portable(name, value) && (name == lower || !strings.HasPrefix(lower, "oncemill-"))
		if lower == producer.HeaderID {
			keep = noID == nil
		}
		if !keep {
			name, value = producer.HeaderEscaped+url.QueryEscape(name), url.QueryEscape(value)
		}
		msg.Metadata[name] = value
	}
}

// withoutOrders returns copies of messages without headers that are orders to the stream that they go to.
func withoutOrders(messages []*message.Message) []*message.Message {
	plain := make([]*message.Message, len(messages))
	for i, msg := range messages {
		plain[i] = msg.CopyWithContext()
		maps.DeleteFunc(plain[i].Metadata, func(name, _ string) bool { return headers.Order(name) })
	}
	return plain
}

// unlessPoisoned takes back the guard's decision to end a message that could not be published as poison, and has the
// nack wait where nothing else delays it.
func unlessPoisoned(poison message.HandlerMiddleware) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			var cause error
			outputs, err := poison(func(msg *message.Message) (outputs []*message.Message, err error) {
				outputs, cause = next(msg)
				return outputs, cause
			})(msg)
			if err == nil || !final(cause) {
				return outputs, err
			}
			if p := passageOf(msg.Context()); p != nil {
				again := consumer.Decision{Action: consumer.RetryLater, Delay: nackDelay(p.delivery.Count), Err: err}
				p.decided.Store(&again)
			} else {
				pace.Sleep(msg.Context(), maxNackDelay) // the guard has not paused
			}
			return outputs, err
		}
	}
}

// final reports whether no redelivery can mend an error of the guard. It looks at the outermost one, because a
// handler's error may hold errors of guards that the handler used.
func final(err error) bool {
	if e, ok := errors.AsType[*oncemill.Error](err); ok {
		return e.Status == oncemill.StatusDone || e.Status == oncemill.StatusMismatch
	}
	_, missing := errors.AsType[*consumer.MissingIDError](err)
	_, unreadable := errors.AsType[*consumer.ContentError](err)
	return missing || unreadable
}

// Retry repeats the handler within one run, which counts as one attempt. It belongs inside the guard. Each try begins
// with the message's context, as with ResetContextOnRetry, so a Timeout inside ends only one try.
//
// Over an inbox Chain refuses Retry, and you must not use it without a chain either. What a try wrote before it failed
// is in the transaction that the next one commits. Unless ShouldRetry is set, errors that the handler marked with
// oncemill.Permanent or oncemill.RetryAfter are not repeated. A handler that has nacked its message is never repeated,
// because nobody could tell whether the next try nacked too.
func Retry(r middleware.Retry) Step {
	if r.ShouldRetry == nil {
		r.ShouldRetry = func(p middleware.RetryParams) bool {
			_, permanent := errors.AsType[interface {
				error
				Permanent() bool
			}](p.Err)
			_, after := errors.AsType[interface {
				error
				RetryAfter() time.Duration
			}](p.Err)
			return !permanent && !after
		}
	}
	retry := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			own := r
			own.ResetContextOnRetry = true
			own.ShouldRetry = func(p middleware.RetryParams) bool { return !isClosed(msg.Nacked()) && r.ShouldRetry(p) }
			return own.Middleware(next)(msg)
		}
	}
	return Step{name: retryStep, middleware: retry}
}

// Timeout ends the handler's context after d. It belongs inside the guard.
func Timeout(d time.Duration) Step {
	s := Step{name: timeoutStep, middleware: middleware.Timeout(d)}
	if d <= 0 {
		s.err = orderError(fmt.Sprintf("Timeout of %v: want more than 0", d))
	}
	return s
}

// Other is any other middleware. Outside the guard it must not change what the handler returns or turn errors into
// success; inside it may.
//
// A middleware that remembers messages and drops those it has seen, such as Watermill's Deduplicator, belongs on
// neither side. It drops the second attempt of a message whose first one failed, and the message is lost.
//
// A middleware that refuses to run the handler, such as Watermill's CircuitBreaker, belongs inside. Turn its refusals
// into oncemill.Uncounted(oncemill.NoEffect(err)). Otherwise they use up attempts, and a policy that parks takes them
// for unknown outcomes.
func Other(name string, mw message.HandlerMiddleware) Step {
	return Step{name: fmt.Sprintf("Other(%q)", name), middleware: mw}
}

// Chain checks the order of middlewares, outermost first, and returns them for Router.AddMiddleware. It refuses an
// order that loses messages, or runs handlers in vain, with an error that says what to move:
//
//	mws, err := oncewatermill.Chain(
//		oncewatermill.PoisonQueue(pub, "poison"), // if there is no consumer.Config.DeadLetters
//		oncewatermill.Guarded(once),
//		oncewatermill.Retry(middleware.Retry{MaxRetries: 3}),
//		oncewatermill.Timeout(10*time.Second),
//	)
func Chain(steps ...Step) ([]message.HandlerMiddleware, error) {
	guard := -1
	for i, s := range steps {
		if s.err != nil {
			return nil, s.err
		}
		if s.middleware == nil {
			return nil, orderError(fmt.Sprintf("step %d, %s, has no middleware", i, s.name))
		}
		if s.name != guardStep {
			continue
		}
		if guard >= 0 {
			return nil, orderError("Guarded stands there twice: a delivery enters one guard, once")
		}
		guard = i
	}
	if guard < 0 {
		return nil, orderError("Guarded is missing: add oncewatermill.Guarded(processor)")
	}
	once := steps[guard].once
	config := once.Config()
	if slices.ContainsFunc(steps[:guard], func(s Step) bool { return s.name == poisonStep }) {
		steps = slices.Clone(steps)
		steps[guard].middleware = newGuard(once, true).middleware // the PoisonQueue has what is rejected
	}
	middlewares := make([]message.HandlerMiddleware, len(steps))
	for i, s := range steps {
		middlewares[i] = s.middleware
		switch {
		case s.name == poisonStep && config.DeadLetters != nil:
			return nil, orderError("PoisonQueue stands beside consumer.Config.DeadLetters: a failure is to " +
				"be published once; remove the PoisonQueue, or leave DeadLetters out")
		case s.name == poisonStep && i > guard:
			return nil, orderError("PoisonQueue stands inside Guarded: a poisoned message would be stored " +
				"as a success, and a crash before that would publish it again; move it before Guarded")
		case s.name == retryStep && i < guard:
			return nil, orderError("Retry stands outside Guarded: it would repeat answers such as busy and " +
				"not due in place, which the guard refuses; move it after Guarded")
		case s.name == retryStep && config.Policy.ExpiredLease == oncemill.Park:
			return nil, orderError("Retry stands inside a guard whose policy parks (at most once): it " +
				"would repeat the handler after an error that proves nothing; remove it, and let the handler return " +
				"oncemill.NoEffect")
		case s.name == retryStep && once.Transacts():
			return nil, orderError("Retry stands inside a guard over an inbox: its second try would write " +
				"in the transaction of the first, beside what that had written before it failed, and both would be " +
				"committed; remove it: the guard tries again, in a new transaction")
		case s.name == timeoutStep && i < guard:
			return nil, orderError("Timeout stands outside Guarded: it would end the wait for a busy key, " +
				"and look like a shutdown to a running handler; move it after Guarded")
		}
	}
	return middlewares, nil
}
