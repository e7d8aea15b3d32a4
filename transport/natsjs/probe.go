package natsjs

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// probe finds out, once between two looks at the consumer, whether the server takes acks from us. The message is not
// settled yet.
func (w *watcher) probe(ctx context.Context, m *message) {
	if w.probed.Load() || !w.probing.CompareAndSwap(false, true) {
		return
	}
	before, answer := w.nc.LastError(), m.ask()
	w.background.Go(func() {
		defer w.probing.Store(false)
		if answer != nil { // else the next message tells
			w.probeAcks(ctx, m, before, answer)
		}
	})
}

// probeAcks looks for the answer to an in-progress ack, and for a refusal of it, or of what settled the message, that
// has come since the message did: the server says so only by an error of the connection. It may be somebody else's, so
// that a second in-progress ack is tried, which is too late for most messages and does at worst prolong the delay of a
// nak.
func (w *watcher) probeAcks(ctx context.Context, m *message, before error, answer *nats.Subscription) {
	defer func() { _ = answer.Unsubscribe() }() // the connection is closed
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if w.nc.FlushWithContext(ctx) != nil {
		return // the next message tells
	}
	if newRefusal(w.nc, before) != nil {
		if err := refusal(ctx, w.nc, m.msg.Reply, string(sayProgress)); err != nil {
			w.stop(w.limits.noRight(m.msg.Reply, err))
		}
	}
	unheard := noResponders(answer)
	switch {
	case !unheard:
		w.unheard = time.Time{}
	case w.unheard.IsZero():
		w.unheard = time.Now()
	case time.Since(w.unheard) >= goneFor:
		w.unheard = time.Time{}
		if w.isUnheard(ctx, m) {
			w.stop(setupError(nats.ErrNoResponders, w.limits.name(), "has acks that reach nobody, and messages come "+
				"again for ever: import $JS.ACK.> from the account of the JetStream"))
		}
	}
	w.probed.Store(!unheard)
}

// isUnheard reports whether nobody listens to acks: an account may import the API of another account's JetStream and
// not its acks. While a consumer's leader changes or is out of reach, nobody does, either: only what is so while the
// consumer answers is believed.
func (w *watcher) isUnheard(ctx context.Context, m *message) bool {
	if _, err := w.look(ctx, 2*time.Second); err != nil {
		return false // nobody knows
	}
	answer := m.ask()
	if answer == nil {
		return false
	}
	defer func() { _ = answer.Unsubscribe() }() // the connection is closed
	return noResponders(answer)
}

// noResponders reports whether a server says, which it does at once, that nobody listens to what was asked.
func noResponders(answer *nats.Subscription) bool {
	_, err := answer.NextMsg(time.Second)
	return errors.Is(err, nats.ErrNoResponders)
}
