package natsjs

import (
	"context"
	"sync/atomic"
	"time"
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
type probe struct{ busy, done atomic.Bool }

// probeAcks sends an in-progress ack for a message, unless it is settled, and looks for a refusal of either that has come
// since the message did: the server says so only by an error of the connection. It may be somebody else's, so that a
// second in-progress ack is tried, which is too late for most messages and does at worst prolong the delay of a nak.
func (s *session) probeAcks(ctx context.Context, f *held, before error) {
	defer s.probe.busy.Store(false)
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if f.progress(time.Now(), 0) != nil || s.nc.FlushWithContext(ctx) != nil {
		return // the next message tells
	}
	s.probe.done.Store(true)
	if newRefusal(s.nc, before) == nil {
		return
	}
	if err := refusal(ctx, s.nc, f.msg.Reply, string(sayProgress)); err != nil {
		s.stop(s.limits.noRight(f.msg.Reply, err))
	}
}
