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
	"github.com/oncemill/oncemill/internal/worker"
	"github.com/oncemill/oncemill/producer"
)

var (
	_ worker.Message  = (*message)(nil)
	_ worker.Returner = (*message)(nil)
)

// Delivery is what a Processor gets for the next try.
func (m *message) Delivery(tries int) (consumer.Delivery, time.Time) {
	if tries > 0 {
		m.s.keeper.wentOn(m)
		m.delivery.Count++
		m.delivery.Header, _ = headers(m.msg.Header) // the one before was the handler's to change
	}
	return m.delivery, time.Time{}
}

// Acked acknowledges the message.
func (m *message) Acked(ctx context.Context) { m.send(ctx, sayAck) }

// Decided carries out a decision that is not an ack.
func (m *message) Decided(ctx context.Context, d consumer.Decision) (due time.Time, again bool) {
	switch d.Action {
	case consumer.RetryLater:
		delay := delayOf(m, d)
		due = time.Now().Add(delay)
		m.log().DebugContext(ctx, "natsjs: message will come again", "delay", delay, "error", d.Err)
		switch draining := m.s.run.IsHalted(); {
		case (!draining || m.Last) && m.s.keeper.keep(m, d, delay):
			m.decision = &d
			return due, true
		case draining:
			m.GiveBack(ctx, due)
		default:
			m.send(ctx, sayNakAfter(delay))
		}
	case consumer.Reject:
		m.log().ErrorContext(m.located(ctx),
			"natsjs: message rejected: the server does not deliver it again, and there is no dead letter of it",
			"id", d.ID, "error", d.Err)
		m.send(ctx, sayTerm(reason(d.Err)))
	default:
		m.log().WarnContext(m.located(ctx), "natsjs: message left to be delivered again after AckWait",
			"id", d.ID, "action", string(d.Action), "error", d.Err)
		m.warnOfLoss(ctx, &d)
		m.silence()
	}
	return due, false
}

// GiveBack has the server deliver the message again, to somebody else. It waits until our own requests are over, which
// the server would answer with the message. One that has an order comes without delay, before those behind it.
func (m *message) GiveBack(ctx context.Context, due time.Time) {
	m.s.keeper.wentOn(m)
	m.warnOfLoss(ctx, m.decision)
	<-m.s.pulled
	if m.ordered || due.IsZero() {
		m.send(ctx, sayNak)
	} else {
		m.send(ctx, sayNakAfter(max(time.Until(due), minDelay)))
	}
}

// warnOfLoss is loud about a message without an outcome that the server will not deliver again.
func (m *message) warnOfLoss(ctx context.Context, d *consumer.Decision) {
	if !m.Last {
		return
	}
	if d == nil { // it has not run
		d = &consumer.Decision{}
	}
	m.log().ErrorContext(m.located(ctx), "natsjs: message has no outcome after its last delivery: the server keeps "+
		"it, and gives it to nobody; set MaxDeliver to -1", "id", d.ID, "action", string(d.Action), "error", d.Err)
}

// log is for lines about the message.
func (m *message) log() *slog.Logger {
	return m.s.info.log.With("sequence", m.sequence, "subject", m.delivery.Topic)
}

// located returns a context for such lines. The delivery's own header is the handler's, which may still be at work.
func (m *message) located(ctx context.Context) context.Context {
	header, _ := headers(m.msg.Header)
	return telemetry.Located(ctx, header)
}

// send settles the message at the server. If that fails, the server will deliver again, and the record knows what has
// been done.
func (m *message) send(ctx context.Context, what []byte) {
	m.mu.Lock()
	m.settled = true // nothing says that it is in progress any more
	err := m.say(what)
	m.mu.Unlock()
	if err != nil {
		m.log().WarnContext(m.located(ctx), "natsjs: message could not be settled; the server will deliver it again",
			"id", m.msg.Header.Get(producer.HeaderID), "settle", string(what), "error", err)
	}
}

// minDelay is the shortest delay of a message that is to come again.
const minDelay = 10 * time.Millisecond

// delayOf is the delay of a message that is to come again. Where the decision has none, as in shadow mode, it grows up
// to about a second.
func delayOf(m *message, d consumer.Decision) time.Duration {
	if d.Delay <= 0 {
		return minDelay << min(max(m.Tries()+m.delivery.Count-2, 0), 7)
	}
	return max(d.Delay, minDelay)
}

// A keeper decides which messages that are to come again wait for that here.
type keeper struct {
	most    int  // messages that wait here although they need not
	naks    int  // whose delays are not over; until then their messages are pending
	limited bool // a nak uses up one of a limited number of deliveries

	mu      sync.Mutex
	kept    int
	delayed []time.Time // the ends of the naks' delays
}

// keep decides whether a message waits here. If not, it counts the nak.
func (k *keeper) keep(m *message, d consumer.Decision, delay time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.delayed = slices.DeleteFunc(k.delayed, now.After)
	tooMany, roomy := len(k.delayed) >= k.naks, k.kept < k.most
	switch {
	case m.ordered, m.scarce: // others would overtake it; it would use up deliveries
		m.kept = true
	case d.Keep:
		m.kept = roomy || tooMany // others would fare no better
	case tooMany, k.limited:
		m.kept = roomy
	}
	if m.kept {
		k.kept++
	} else {
		k.delayed = append(k.delayed, now.Add(delay))
	}
	return m.kept
}

// wentOn notes that a message does not wait here any more, if it did.
func (k *keeper) wentOn(m *message) {
	if m.kept {
		k.mu.Lock()
		defer k.mu.Unlock()
		m.kept = false
		k.kept--
	}
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
