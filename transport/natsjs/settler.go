package natsjs

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/natswire"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// settler carries out what is decided about messages.
type settler struct {
	*session

	mu      sync.Mutex
	kept    int         // messages that wait here for their next try
	delayed []time.Time // the ends of naks' delays: until then their messages are pending
}

// settle carries a decision out. It reports whether to try the message again now.
func (s *settler) settle(ctx context.Context, m *message, d consumer.Decision) (again bool) {
	switch d.Action {
	case consumer.RetryLater:
		return s.retry(ctx, m, d)
	case consumer.Reject:
		s.about(m).ErrorContext(located(ctx, m),
			"natsjs: message rejected: the server does not deliver it again, and there is no dead letter of it",
			"id", d.ID, "error", d.Err)
		s.send(ctx, m, sayTerm(reason(d.Err)))
	default:
		s.about(m).WarnContext(located(ctx, m), "natsjs: message left to be delivered again after AckWait",
			"id", d.ID, "action", string(d.Action), "error", d.Err)
		s.warnOfLoss(ctx, m, d)
		m.silence()
	}
	return false
}

// about is the log for lines about a message.
func (s *settler) about(m *message) *slog.Logger {
	return s.log.With("sequence", m.sequence, "subject", m.delivery.Topic)
}

// located returns a context for log lines about a message.
func located(ctx context.Context, m *message) context.Context {
	return telemetry.Located(ctx, m.delivery.Header)
}

// warnOfLoss is loud about a message without an outcome that the server will not deliver again.
func (s *settler) warnOfLoss(ctx context.Context, m *message, d consumer.Decision) {
	if m.last {
		s.about(m).ErrorContext(located(ctx, m), "natsjs: message has no outcome after its last delivery: the server "+
			"keeps it, and gives it to nobody; set MaxDeliver to -1",
			"id", d.ID, "action", string(d.Action), "error", d.Err)
	}
}

// send settles a message at the server. If that fails, the server will deliver again, and the record knows what has
// been done.
func (s *settler) send(ctx context.Context, m *message, what []byte) {
	m.mu.Lock()
	m.settled = true // nothing says that it is in progress any more
	err := m.say(what)
	m.mu.Unlock()
	if err != nil {
		s.about(m).WarnContext(located(ctx, m), "natsjs: message could not be settled; the server will deliver it "+
			"again", "id", m.delivery.Header.Get(producer.HeaderID), "settle", string(what), "error", err)
	}
}

// retry deals with a message that must come again. It reports whether to try it here and now.
func (s *settler) retry(ctx context.Context, m *message, d consumer.Decision) (again bool) {
	delay := delayOf(m, d)
	s.log.DebugContext(ctx, "natsjs: message will come again", "sequence", m.sequence, "delay", delay, "error", d.Err)
	due := time.Now().Add(delay)
	if s.keep(m, d, delay) {
		if s.await(ctx, m, delay) {
			return true
		}
		delay = max(time.Until(due), minDelay)
	}
	s.warnOfLoss(ctx, m, d)
	switch {
	case !s.isDraining():
		s.send(ctx, m, sayNakAfter(delay))
	case m.ordered:
		s.giveBack(ctx, m) // without delay, so that it comes before those behind it
	default:
		<-s.pulled
		s.send(ctx, m, sayNakAfter(delay))
	}
	return false
}

// minDelay is the shortest delay of a message that is to come again.
const minDelay = 10 * time.Millisecond

// delayOf is the delay of a message that is to come again. Where the decision has none, as in shadow mode, it grows up
// to about a second.
func delayOf(m *message, d consumer.Decision) time.Duration {
	if d.Delay <= 0 {
		return minDelay << min(max(m.tries+m.delivery.Count-2, 0), 7)
	}
	return max(d.Delay, minDelay)
}

// keep decides whether a message that is to come again waits for that here. If not, it counts the nak.
func (s *settler) keep(m *message, d consumer.Decision, delay time.Duration) (keep bool) {
	if s.isDraining() && !m.last {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.delayed = slices.DeleteFunc(s.delayed, now.After)
	tooMany := len(s.delayed) >= s.limits.delayed
	roomy := s.kept < s.limits.maxInFlight/2
	switch {
	case m.ordered, m.scarce: // others would overtake it; it would use up deliveries
		keep = true
	case d.Keep:
		keep = roomy || tooMany // others would fare no better
	case tooMany, s.limits.maxDeliver > 0:
		keep = roomy
	}
	if keep {
		s.kept++
	} else {
		s.delayed = append(s.delayed, now.Add(delay))
	}
	return keep
}

// await waits until a kept message is due. It reports false if the drain comes first.
func (s *settler) await(ctx context.Context, m *message, delay time.Duration) bool {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept--
	}()
	draining := s.draining
	if m.last {
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

// giveBack has the server deliver a message again at once, to somebody else. It waits until our own requests are over,
// which the server would answer with the message.
func (s *settler) giveBack(ctx context.Context, m *message) {
	<-s.pulled
	s.send(ctx, m, sayNak)
}

// maxReason bounds the reason of a rejection, which stands in an advisory.
const maxReason = 256

// reason is an error as one line.
func reason(err error) string {
	if err == nil {
		return "rejected"
	}
	text := strings.TrimSpace(strings.Map(natswire.Printable, strings.ToValidUTF8(err.Error(), "?")))
	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}
