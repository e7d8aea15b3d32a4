package natsjs

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// keepAlive tells the server that the messages in flight are worked on, also those that wait.
func (s *session) keepAlive(finished <-chan struct{}) {
	ticker := time.NewTicker(s.limits.progress)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-finished:
			return
		case <-ticker.C:
		}
		err := s.progress(time.Now())
		if err != nil && !failing {
			s.log.Warn("natsjs: the server cannot be told that messages are in progress", "error", err)
		}
		failing = err != nil
	}
}

// progress sends in-progress acks for what has been in flight for a whole tick.
func (s *session) progress(now time.Time) (failed error) {
	s.mu.Lock()
	flights := make([]*held, 0, len(s.flights))
	for f := range s.flights {
		flights = append(flights, f)
	}
	s.mu.Unlock()
	for _, f := range flights {
		if err := f.progress(now, s.limits.progress); err != nil {
			failed = err
		}
	}
	return failed
}

func (f *held) progress(now time.Time, tick time.Duration) error {
	f.mu.Lock() // so that none is sent after the ack: it would undo a nak's delay
	defer f.mu.Unlock()
	if f.settled || now.Sub(f.touched) < tick {
		return nil
	}
	away := !f.nc.IsConnected()
	if away && f.kept { // the connection's buffer is not for this alone
		return nil
	}
	err := f.say(sayProgress)
	if err == nil {
		f.touched, f.kept = now, away
	}
	return err
}

// A probe finds out, once between two looks at the consumer, whether the server takes acks from us.
type probe struct {
	busy, done atomic.Bool
	unheard    time.Time // since when nobody listens to acks
}

// ask sends an in-progress ack that is to be answered. It returns nil if that cannot be.
func (f *held) ask(now time.Time) *nats.Subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.foreign {
		return nil
	}
	inbox := f.nc.NewInbox()
	answer, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		return nil
	}
	if err := f.nc.PublishRequest(f.msg.Reply, inbox, sayProgress); err != nil {
		_ = answer.Unsubscribe() // the connection is closed
		return nil
	}
	f.touched = now
	return answer
}

// probeAcks looks for the answer to ask, and for a refusal of it, or of what settled the message, that has come since
// the message did: the server says so only by an error of the connection. It may be somebody else's, so that a second
// in-progress ack is tried, which is too late for most messages and does at worst prolong the delay of a nak.
func (s *session) probeAcks(ctx context.Context, f *held, before error, answer *nats.Subscription) {
	defer s.probe.busy.Store(false)
	if answer == nil {
		return // the next message tells
	}
	defer func() { _ = answer.Unsubscribe() }() // the connection is closed
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if s.nc.FlushWithContext(ctx) != nil {
		return // the next message tells
	}
	if newRefusal(s.nc, before) != nil {
		if err := refusal(ctx, s.nc, f.msg.Reply, string(sayProgress)); err != nil {
			s.stop(s.limits.noRight(f.msg.Reply, err))
		}
	}
	unheard := noResponders(answer)
	switch p := &s.probe; {
	case !unheard:
		p.unheard = time.Time{}
	case p.unheard.IsZero():
		p.unheard = time.Now()
	case time.Since(p.unheard) >= goneFor:
		if err := s.unheard(ctx, f); err != nil {
			s.stop(err)
		}
		p.unheard = time.Time{}
	}
	s.probe.done.Store(!unheard)
}

// unheard returns an error if nobody listens to acks: an account may import the API of another account's JetStream and
// not its acks. While a consumer's leader changes or is out of reach, nobody does, either: only what is so while the
// consumer answers is believed.
func (s *session) unheard(ctx context.Context, f *held) error {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := s.info(short); err != nil {
		return nil // nobody knows
	}
	answer := f.ask(time.Now())
	if answer == nil {
		return nil
	}
	defer func() { _ = answer.Unsubscribe() }() // the connection is closed
	if !noResponders(answer) {
		return nil
	}
	return setupError(nats.ErrNoResponders, s.limits.name(), "has acks that reach nobody, and messages come again "+
		"for ever: import $JS.ACK.> from the account of the JetStream")
}

// noResponders reports whether a server says, which it does at once, that nobody listens to what was asked.
func noResponders(answer *nats.Subscription) bool {
	_, err := answer.NextMsg(time.Second)
	return errors.Is(err, nats.ErrNoResponders)
}
