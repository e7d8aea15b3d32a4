package natsjs

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
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
	s.lanes.Go(f.lane, func() { s.work(work, f) })
}

func (s *session) release(settled ...*held) {
	s.mu.Lock()
	for _, f := range settled {
		delete(s.flights, f)
	}
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

// work has a message processed, as often as it takes here, and settles it.
func (s *session) work(ctx context.Context, f *held) {
	acked := false
	defer func() {
		if acked {
			s.ack(ctx, f)
		} else {
			s.release(f)
		}
	}()
	if s.isDraining() && !f.last { // giving back the last delivery would lose the message
		s.giveBack(ctx, f)
		return
	}
	for {
		f.tries++
		d := s.decide(ctx, f)
		if acked = d.Action == consumer.Ack && !s.config.DoubleAck; acked {
			return
		}
		if d.Action != consumer.RetryLater {
			s.settle(ctx, f, d)
			return
		}
		if !s.retry(ctx, f, d) {
			return
		}
		f.delivery.Count++
		f.delivery.Header, _ = headers(f.msg.Header) // the one before was the handler's to change
	}
}

// decide has a message processed.
func (s *session) decide(ctx context.Context, f *held) (d consumer.Decision) {
	s.running.Add(1)
	returned := false
	defer func() {
		s.running.Add(-1)
		if v := recover(); v == nil && !returned {
			s.log.ErrorContext(f.traced(ctx),
				"natsjs: a handler has ended its goroutine (runtime.Goexit): its message comes again after AckWait, "+
					"behind others of its lane",
				"id", f.delivery.Header.Get(producer.HeaderID), "sequence", f.sequence)
		} else if v != nil { // not the handler's, whose panics the guard turns into errors
			err := &oncemill.PanicError{Value: v, Stack: debug.Stack()}
			s.log.ErrorContext(f.traced(ctx), "natsjs: panic while a message was processed",
				"id", f.delivery.Header.Get(producer.HeaderID), "sequence", f.sequence, "error", err,
				"stack", string(err.Stack))
			d = consumer.Decision{Action: consumer.RetryLater, Delay: time.Second, Err: err}
		}
	}()
	d = s.process(ctx, message{f}, f.delivery)
	returned = true
	return d
}
