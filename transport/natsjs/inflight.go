package natsjs

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/consumer"
)

// A held is a message that the server has given us and that is not settled.
type held struct {
	nc       *nats.Conn
	msg      *nats.Msg
	delivery consumer.Delivery
	sequence uint64 // in the stream
	lane     string
	ordered  bool // nothing of its lane may overtake it
	last     bool // the server would not deliver it again
	scarce   bool // it has no more deliveries than crashes may need, or a nak's delay would not be kept
	tries    int

	mu      sync.Mutex
	settled bool
	foreign bool      // the server would take what is said of it for another message
	touched time.Time // since when the server waits for us
	kept    bool      // the connection keeps what was said last until it is there again
}

// receive takes a message that a request brought.
func (s *session) receive(work context.Context, msg *nats.Msg, now time.Time) {
	meta, err := msg.Metadata()
	if err != nil {
		s.log.ErrorContext(work, "natsjs: message that is not from JetStream", "subject", msg.Subject, "error", err)
		s.mu.Lock()
		s.credit--
		s.mu.Unlock()
		return
	}
	f := &held{nc: s.nc, msg: msg, delivery: s.delivery(msg, meta), sequence: meta.Sequence.Stream, touched: now}
	f.lane = s.lane(work, f)
	f.ordered = f.lane != "" || s.limits.maxInFlight == 1
	f.scarce = s.limits.backsOff
	if limit := uint64(s.limits.maxDeliver); limit > 0 {
		f.last = meta.NumDelivered >= limit
		f.scarce = f.scarce || meta.NumDelivered+uint64(s.limits.reserve) >= limit
	}
	s.mu.Lock()
	s.credit--
	s.learn(msg.Size())
	s.delivered = max(s.delivered, meta.Sequence.Consumer)
	s.flights[f] = struct{}{}
	s.mu.Unlock()
	if !s.probe.done.Load() && s.probe.busy.CompareAndSwap(false, true) {
		before, answer := s.nc.LastError(), f.ask(now) // while it is not settled
		s.background.Go(func() { s.probeAcks(work, f, before, answer) })
	}
	s.handling.Add(1)
	s.order.Start(f.lane, func() { s.begin(work, f) })
}

func (s *session) release(f *held) {
	s.mu.Lock()
	delete(s.flights, f)
	free, _ := s.free()
	s.mu.Unlock()
	if free > 0 { // else the end of a request says more
		s.nudge()
	}
}

// brokenLane is the lane of messages for which Config.Order panics: one after the other is the safe side.
const brokenLane = "natsjs: Config.Order panicked"

func (s *session) lane(ctx context.Context, f *held) (lane string) {
	if s.config.Order == nil {
		return ""
	}
	defer func() {
		if v := recover(); v != nil {
			lane = brokenLane
			s.log.ErrorContext(ctx, "natsjs: Config.Order panicked", "subject", f.msg.Subject, "panic", v)
		}
	}()
	return s.config.Order(message{f})
}

// begin has a message processed that may start now.
func (s *session) begin(ctx context.Context, f *held) {
	if s.isDraining() && !f.last { // giving back the last delivery would lose the message
		go func() {
			defer s.over(f)
			s.giveBack(ctx, f)
		}()
		return
	}
	f.tries++
	s.running.Add(1)
	s.process(ctx, message{f}, f.delivery, func(d consumer.Decision) {
		s.running.Add(-1)
		if d.Action == consumer.Ack && !s.config.DoubleAck {
			s.send(ctx, f, "ack", sayAck)
			s.over(f)
			return
		}
		go s.conclude(ctx, f, d)
	})
}

// conclude carries a decision out that is more than an ack.
func (s *session) conclude(ctx context.Context, f *held, d consumer.Decision) {
	if d.Action == consumer.RetryLater && s.retry(ctx, f, d) {
		f.delivery.Count++
		f.delivery.Header, _ = headers(f.msg.Header) // the one before was the handler's to change
		s.begin(ctx, f)
		return
	}
	defer s.over(f)
	if d.Action != consumer.RetryLater {
		s.settle(ctx, f, d)
	}
}

// over releases a message that is settled, or given up, and starts what follows it.
func (s *session) over(f *held) {
	s.release(f)
	s.order.Done(f.lane)
	s.handling.Done()
}
