package natsjs

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// probe finds out, once between two looks at the consumer, whether the server takes acks from us.
func (w *watcher) probe(ctx context.Context, m *message) {
	if w.probed.Load() || w.probed.Swap(true) {
		return
	}
	w.background.Go(func() { w.probed.Store(w.probeAcks(ctx, m)) })
}

// probeAcks reports whether the next message need not be asked about. An account may import the API of another
// account's JetStream and not its acks. While a consumer's leader changes or is out of reach, nobody listens to them,
// either: only what is so for a while, and while the consumer answers, is believed.
func (w *watcher) probeAcks(ctx context.Context, m *message) bool {
	err := w.ask(ctx, m)
	if !errors.Is(err, nats.ErrNoResponders) {
		if err != nil {
			err = refusal(ctx, w.nc, m.msg.Reply, string(sayProgress))
		}
		if err != nil {
			w.stop(w.limits.noRight(m.msg.Reply, err))
		}
		return true
	}
	select {
	case <-time.After(goneFor):
	case <-w.finished:
		return false
	}
	if _, err := w.look(ctx, 2*time.Second); err != nil {
		return false // nobody knows
	}
	if err := w.ask(ctx, m); errors.Is(err, nats.ErrNoResponders) {
		w.stop(setupError(err, w.limits.name(), "has acks that reach nobody, and messages come again for ever: import "+
			"$JS.ACK.> from the account of the JetStream"))
	}
	return false
}

// ask sends an in-progress ack, and waits for the answer. Where it is too late it does at worst prolong the delay of a
// nak.
func (w *watcher) ask(ctx context.Context, m *message) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := w.nc.RequestWithContext(ctx, m.msg.Reply, sayProgress)
	return err
}
