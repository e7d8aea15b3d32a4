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
	answer, err := w.ask(m) // before it is settled, or it would prolong the delay of a nak
	w.background.Go(func() { w.probed.Store(err == nil && w.probeAcks(ctx, m, answer)) })
}

// probeAcks reports whether the next message need not be asked about. An account may import the API of another
// account's JetStream without its acks. Nobody listens to acks either while a consumer's leader changes or is out of
// reach. So a failure counts only if it lasts for a while and the consumer answers.
func (w *watcher) probeAcks(ctx context.Context, m *message, answer *nats.Subscription) bool {
	err := await(answer)
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
	answer, err = w.ask(m)
	if err == nil {
		err = await(answer)
	}
	if errors.Is(err, nats.ErrNoResponders) {
		w.stop(setupError(err, w.limits.name(), "has acks that reach nobody, and messages come again for ever: import "+
			"$JS.ACK.> from the account of the JetStream"))
	}
	return false
}

// ask sends an in-progress ack and asks for an answer.
func (w *watcher) ask(m *message) (answer *nats.Subscription, err error) {
	inbox := w.nc.NewInbox()
	if answer, err = w.nc.SubscribeSync(inbox); err == nil {
		err = w.nc.PublishRequest(m.msg.Reply, inbox, sayProgress)
	}
	return answer, err
}

// await returns nil when there is an answer, or nats.ErrNoResponders at once.
func await(answer *nats.Subscription) error {
	defer func() { _ = answer.Unsubscribe() }() // fails only if the connection is closed
	_, err := answer.NextMsg(time.Second)
	return err
}
