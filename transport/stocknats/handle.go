package stocknats

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

var (
	errNacked   = errors.New("stocknats: message nacked")
	errUnmarked = errors.New("stocknats: the message did not come through this package's unmarshaler, or not from JetStream")
)

// What becomes of messages in a drain, beside what the guard decides.
const (
	abandoned consumer.Action = "abandoned" // its handler outlasts the drain: nobody answers, the ack deadline decides
	withheld  consumer.Action = "withheld"  // it was not handed over: it is given back at the end of the drain
)

// traced returns a context for log lines about a message.
func traced(msg *message.Message) context.Context {
	return telemetry.Located(context.WithoutCancel(msg.Context()), msg.Metadata)
}

// messageID is the ID of a message for log lines.
func messageID(msg *message.Message) string {
	return cmp.Or(producer.Header(msg.Metadata).Get(producer.HeaderID), msg.UUID)
}

// handle sees a message of the adapter through. The server is told that it is being worked on until it is settled.
func (s *subscription) handle(work context.Context, msg *message.Message) {
	from, metadata, ok := unmark(msg)
	if !ok {
		s.config.Logger.ErrorContext(traced(msg), "oncemill: message put off", "uuid", msg.UUID, "topic", s.topic, "error", errUnmarked)
		s.steering.nack(msg, 0, undecodable.max)
		return
	}
	alive, stop := context.WithCancel(context.WithoutCancel(work))
	var alives sync.WaitGroup
	alives.Go(func() { keepAlive(alive, s.nc, from.Reply, s.ackWait()) })
	decision := s.decide(work, msg, metadata, from)
	stop()
	alives.Wait() // before the answer, after which the message may be at work elsewhere
	if decision.Action == withheld {
		s.park(msg)
		return
	}
	s.settle(msg, from, decision)
}

// decide finds out what is to become of a message. A message that has nothing to do with the trouble is kept and
// offered again, for as long as the adapter waits: to give it back would use up deliveries.
func (s *subscription) decide(work context.Context, msg *message.Message, metadata message.Metadata, from origin) consumer.Decision {
	if from.Problem != "" {
		return consumer.Decision{Action: consumer.RetryLater, Delay: undecodable.WaitTime(from.Count), Err: errors.New("cannot decode: " + from.Problem)}
	}
	for {
		decision := s.offer(work, msg, metadata, from)
		if decision.Action != consumer.RetryLater || !decision.Keep || !pause(msg.Context(), max(decision.Delay, shortest), s.draining) {
			return decision
		}
	}
}

// offer hands a copy of a message to the Router and waits for what becomes of it.
func (s *subscription) offer(work context.Context, msg *message.Message, metadata message.Metadata, from origin) consumer.Decision {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(msg.Context()))
	defer cancel(nil) // as the adapters do it: the context of a message ends with its ack
	defer context.AfterFunc(work, func() { cancel(context.Cause(work)) })()
	var decided atomic.Pointer[consumer.Decision]
	offered := message.NewMessage(msg.UUID, msg.Payload)
	for name, value := range metadata {
		offered.Metadata.Set(name, value)
	}
	offered.SetContext(consumer.WithSteering(ctx, consumer.Steering{
		Delivery: consumer.Delivery{
			Topic: s.topic, Origin: from.Stream, System: telemetry.SystemNATS, Position: from.position(), Count: int(from.Count),
			Header: producer.Header(metadata), UUID: msg.UUID, Payload: msg.Payload,
		},
		Decide: func(decision consumer.Decision) { decided.Store(&decision) },
	}))
	select {
	case s.out <- offered:
	case <-s.draining:
		return consumer.Decision{Action: withheld}
	}
	select {
	case <-offered.Acked():
		if decision := decided.Load(); decision != nil && (decision.Action == consumer.RetryLater || decision.Action == consumer.Leave) {
			s.warned.Do(func() {
				s.config.Logger.ErrorContext(ctx, "oncemill: a middleware outside of the guard makes a success of the guard's errors; such messages come again all the same: put consumer.PoisonQueue in place of Watermill's, and see consumer.Chain",
					"id", decision.ID, "topic", s.topic, "error", decision.Err)
			})
			return *decision
		}
		return consumer.Decision{Action: consumer.Ack}
	case <-offered.Nacked():
	case <-work.Done():
		return consumer.Decision{Action: abandoned}
	}
	if decision := decided.Load(); decision != nil && decision.Action != consumer.Ack { // else its outputs were not published
		return *decision
	}
	wait := s.steering.fallback.WaitTime(from.Count)
	if wait == terminate {
		return consumer.Decision{Action: consumer.Reject, Err: errNacked}
	}
	return consumer.Decision{Action: consumer.RetryLater, Delay: wait, Err: errNacked}
}

// settle carries a decision out, through the adapter if that has not given the message up, and returns when the adapter
// is done with it.
func (s *subscription) settle(msg *message.Message, from origin, decision consumer.Decision) {
	wait := max(decision.Delay, shortest)
	switch {
	case decision.Action == consumer.Ack:
		s.ack(msg, from)
		return
	case decision.Action == abandoned:
		s.config.Logger.ErrorContext(traced(msg), "oncemill: handler did not end in time, its message is left to the ack deadline", "id", messageID(msg), "topic", s.topic, "stream", from.Stream, "sequence", from.Sequence)
		return
	case decision.Action == consumer.Leave:
		wait = s.config.Lease
	case decision.Action == consumer.Reject:
		wait = terminate
		s.config.Logger.ErrorContext(traced(msg), "oncemill: message terminated without a dead letter", "id", messageID(msg), "topic", s.topic, "stream", from.Stream, "sequence", from.Sequence, "error", decision.Err)
	case from.Problem != "":
		s.config.Logger.ErrorContext(traced(msg), "oncemill: message put off", "id", messageID(msg), "topic", s.topic, "stream", from.Stream, "sequence", from.Sequence, "error", decision.Err)
	}
	if !s.steering.nack(msg, from.Count, wait) {
		s.tell(from, nakBody(wait))
		return
	}
	<-msg.Context().Done()
}

// ack acknowledges a message. The adapter's context for it ends when its ack is confirmed, or has failed.
func (s *subscription) ack(msg *message.Message, from origin) {
	select {
	case <-msg.Context().Done(): // it has given the message up, but the work is done
		if _, err := s.nc.Request(from.Reply, []byte(ackBody), flushTimeout); err != nil {
			s.config.Logger.WarnContext(traced(msg), "oncemill: ack not confirmed", "id", messageID(msg), "topic", s.topic, "stream", from.Stream, "sequence", from.Sequence, "error", err)
		}
		return
	default:
	}
	msg.Ack()
	<-msg.Context().Done()
}
