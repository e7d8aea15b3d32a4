package natsjs

import (
	"context"
	"strings"
	"time"
	"unicode"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// traced returns a context for log lines about a message.
func (f *held) traced(ctx context.Context) context.Context {
	return telemetry.Located(ctx, f.delivery.Header)
}

// minDelay is the shortest delay of a message that is to come again.
const minDelay = 10 * time.Millisecond

// delayOf is the delay of a message that is to come again. Where the decision has none, as in shadow mode, it grows up
// to about a second.
func delayOf(f *held, d consumer.Decision) time.Duration {
	if d.Delay <= 0 {
		return minDelay << min(max(f.tries+f.delivery.Count-2, 0), 7)
	}
	return max(d.Delay, minDelay)
}

// settle carries a decision out that ends a flight.
func (s *session) settle(ctx context.Context, f *held, d consumer.Decision) {
	switch d.Action {
	case consumer.Ack:
		s.doubleAck(ctx, f)
	case consumer.Reject:
		s.log.ErrorContext(f.traced(ctx), "natsjs: message rejected; the server is told not to deliver it again, and "+
			"it is no dead letter",
			"id", d.ID, "sequence", f.sequence, "subject", f.delivery.Topic, "error", d.Err)
		s.send(ctx, f, "term", sayTerm(reason(d.Err)))
	default:
		s.log.WarnContext(f.traced(ctx), "natsjs: message left to be delivered again after AckWait",
			"id", d.ID, "sequence", f.sequence, "subject", f.delivery.Topic, "action", string(d.Action), "error", d.Err)
		s.warnOfLoss(ctx, f, d)
		f.end()
	}
}

// warnOfLoss is loud about a message without an outcome that the server will not deliver again.
func (s *session) warnOfLoss(ctx context.Context, f *held, d consumer.Decision) {
	if f.last {
		s.log.ErrorContext(f.traced(ctx), "natsjs: message has no outcome after its last delivery: the server keeps "+
			"it, and gives it to nobody; set MaxDeliver to -1",
			"id", d.ID, "sequence", f.sequence, "subject", f.delivery.Topic, "action", string(d.Action), "error", d.Err)
	}
}

// doubleAck acknowledges a message and waits, for a while, for the server to say so.
func (s *session) doubleAck(ctx context.Context, f *held) {
	f.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	for {
		err := s.confirm(ctx, f)
		if err == nil {
			return
		}
		pause := time.NewTimer(100 * time.Millisecond) // a server that is starting has no consumer to ack yet
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
		if ctx.Err() != nil || s.nc.IsClosed() || f.isForeign() {
			s.unsent(ctx, f, "ack", err)
			return
		}
	}
}

// confirm acknowledges a message and waits for the server to say so.
func (s *session) confirm(ctx context.Context, f *held) error {
	if f.isForeign() {
		return errForeign
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout/4)
	defer cancel()
	_, err := f.nc.RequestWithContext(ctx, f.msg.Reply, sayAck)
	return err
}

// send settles a message at the server.
func (s *session) send(ctx context.Context, f *held, what string, say []byte) {
	f.mu.Lock() // nothing says that it is in progress any more
	f.settled = true
	err := f.say(say)
	f.mu.Unlock()
	if err != nil {
		s.unsent(ctx, f, what, err)
	}
}

// unsent reports that the server was not told. It will deliver again, and the record knows what has been done.
func (s *session) unsent(ctx context.Context, f *held, what string, err error) {
	s.log.WarnContext(f.traced(ctx), "natsjs: message could not be settled; the server will deliver it again",
		"id", f.delivery.Header.Get(producer.HeaderID), "settle", what, "sequence", f.sequence, "subject",
		f.delivery.Topic, "error", err)
}

// end stops the in-progress acks of a message.
func (f *held) end() {
	f.mu.Lock()
	f.settled = true
	f.mu.Unlock()
}

// retry deals with a message that is to come again. It reports whether that is here, and after the delay.
func (s *session) retry(ctx context.Context, f *held, d consumer.Decision) bool {
	delay := delayOf(f, d)
	s.log.DebugContext(ctx, "natsjs: message is to come again", "sequence", f.sequence, "delay", delay, "error", d.Err)
	due := time.Now().Add(delay)
	if s.keep(f, d, due) {
		if s.await(ctx, f, delay) {
			return true
		}
		delay = max(time.Until(due), minDelay)
	}
	s.warnOfLoss(ctx, f, d)
	switch {
	case !s.isDraining():
		s.send(ctx, f, "nak", sayNakAfter(delay))
	case f.ordered:
		s.giveBack(ctx, f) // without delay, so that it comes before those behind it
	default:
		<-s.pulled
		s.send(ctx, f, "nak", sayNakAfter(delay))
	}
	return false
}

// keep decides whether a message that is to come again waits for that here, in the window. If not, it counts the nak.
func (s *session) keep(f *held, d consumer.Decision, due time.Time) bool {
	if s.isDraining() && !f.last {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	tooMany := s.delayed.outstanding(time.Now()) >= s.limits.delayed
	roomy := s.kept < s.limits.maxInFlight/2
	keep := false
	switch {
	case f.ordered, f.scarce: // others would overtake it; it would use up deliveries
		keep = true
	case d.Keep:
		keep = roomy || tooMany // others would fare no better
	case tooMany, s.limits.maxDeliver > 0:
		keep = roomy
	}
	if keep {
		s.kept++
	} else {
		s.delayed.add(due)
	}
	return keep
}

// await waits until a kept message is due. It reports false if the drain comes first.
func (s *session) await(ctx context.Context, f *held, delay time.Duration) bool {
	defer func() {
		s.mu.Lock()
		s.kept--
		s.mu.Unlock()
	}()
	draining := s.draining
	if f.last {
		draining = nil // it would be lost; it has until the grace ends
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-draining:
	case <-ctx.Done():
	}
	return false
}

// giveBack has the server deliver a message again at once, to somebody else: not before our own requests are over,
// which it would answer with it.
func (s *session) giveBack(ctx context.Context, f *held) {
	<-s.pulled
	s.send(ctx, f, "nak", sayNak)
}

// maxReason bounds the reason of a rejection, which stands in an advisory.
const maxReason = 256

// reason is an error as one line.
func reason(err error) string {
	if err == nil {
		return "rejected"
	}
	text := strings.ToValidUTF8(err.Error(), "?")
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text))
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	return text
}
