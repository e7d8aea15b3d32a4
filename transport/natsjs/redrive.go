package natsjs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/producer"
)

// Redrive implements [deadletters.Source]. It finds or makes the durable consumer.
func (d *DeadLetters) Redrive(ctx context.Context, t deadletters.Taking) (deadletters.Redrive, error) {
	stream, err := d.stream(ctx)
	if err != nil {
		return nil, err
	}
	r := &redrive{of: d, stream: stream, Taking: t, taken: map[uint64]string{}, within: takeTimeout}
	if len(t.Positions) > 0 {
		return r, nil
	}
	r.durable, err = stream.Consumer(ctx, d.config.Progress)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		r.durable, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: d.config.Progress, FilterSubject: d.subject, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: takeTimeout, MaxAckPending: -1, Description: "which dead letters were redriven",
		})
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %q: %w", d.config.Progress, err)
	}
	return r, d.owns(r.durable)
}

// A redrive takes letters from the durable consumer, or by their positions.
type redrive struct {
	deadletters.Taking
	of      *DeadLetters
	stream  jetstream.Stream
	durable jetstream.Consumer // nil: by positions
	taken   map[uint64]string  // where each is answered; the letters themselves may be many
	kept    time.Time          // when those that were taken and left were held back last
	waits   time.Time          // since when it has waited for another redrive
	within  time.Duration      // how long an answer to an ack may take
}

// Take implements [deadletters.Redrive].
func (r *redrive) Take(ctx context.Context, n int) (batch []deadletters.Letter, err error) {
	if r.durable == nil {
		return r.show(ctx, n)
	}
	if time.Since(r.kept) > takeTimeout/3 { // what is left comes after what is new, not before it
		r.answer(sayProgress)
		r.kept = time.Now()
	}
	late := false // so all that are meant have been delivered, to this redrive or another
	for len(batch) == 0 {
		messages, err := r.durable.Fetch(n, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return nil, fmt.Errorf("take letters: %w", err)
		}
		for msg := range messages.Messages() {
			found, meta, err := letterOf(msg)
			if err != nil {
				return nil, err
			}
			switch {
			case !r.Until.IsZero() && found.Time.After(r.Until):
				late = true
			case r.taken[meta.Sequence.Stream] == "": // else it comes again because it was left
				batch = append(batch, found)
			}
			r.taken[meta.Sequence.Stream] = msg.Reply()
		}
		if err := errors.Join(messages.Error(), ctx.Err()); err != nil {
			return nil, fmt.Errorf("take letters: %w", err)
		}
		info, err := r.durable.Info(ctx)
		if err != nil {
			return nil, fmt.Errorf("consumer %q: %w", r.of.config.Progress, err)
		}
		ended := late || info.NumPending == 0
		others := info.NumAckPending - len(r.taken)
		switch {
		case len(batch) > 0 || ended && others <= 0:
			r.waits = time.Time{}
			return batch, nil
		case !ended:
		case r.waits.IsZero():
			r.waits = time.Now()
			if r.Wait != nil {
				r.Wait(fmt.Sprintf("Waiting for letters that another redrive has: %d, until it ends, or %v after a "+
					"kill.", others, takeTimeout))
			}
		case time.Since(r.waits) > waitMost:
			return nil, fmt.Errorf("another redrive of subject %q has letters, %d: when it has ended, say the same "+
				"again", r.of.subject, others)
		}
	}
	return batch, nil
}

// show takes letters by their positions. Those that are gone are left out.
func (r *redrive) show(ctx context.Context, n int) (batch []deadletters.Letter, err error) {
	for len(batch) < n && len(r.Positions) > 0 {
		l, err := r.of.show(ctx, r.stream, r.Positions[0])
		if err != nil && !errors.Is(err, deadletters.ErrGone) {
			return nil, err
		}
		if r.Positions = r.Positions[1:]; err == nil {
			batch = append(batch, l)
		}
	}
	return batch, nil
}

// Done implements [deadletters.Redrive]. What was taken by its position is not acknowledged: its record tells that it
// ran. From a work queue it is removed.
func (r *redrive) Done(ctx context.Context, sent []deadletters.Letter) error {
	if r.durable == nil {
		if r.stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy {
			return r.of.Discard(ctx, sent)
		}
		return nil
	}
	replies := make(map[string]string, len(sent))
	for i := range sent {
		number := sequence(&sent[i])
		replies[sent[i].Position] = r.taken[number]
		delete(r.taken, number)
	}
	err := r.of.sideBySide(sent, func(l *deadletters.Letter) error {
		within, cancel := context.WithTimeout(ctx, r.within) // a lost connection ends no request
		defer cancel()
		_, err := r.of.js.Conn().RequestWithContext(within, replies[l.Position], sayAck)
		return err
	})
	if err != nil {
		return fmt.Errorf("acknowledge letters that were sent: %w", err)
	}
	return nil
}

// Publisher implements [deadletters.Redrive].
func (r *redrive) Publisher() (producer.Publisher, error) {
	return NewPublisher(r.of.js, PublisherConfig{Logger: slog.New(slog.DiscardHandler)})
}

// Close implements [deadletters.Redrive].
func (r *redrive) Close() {
	r.answer(sayNak) // else they come again when their time is over
	_ = r.of.js.Conn().FlushTimeout(time.Second)
}

// answer says the same of all that were taken and left.
func (r *redrive) answer(what []byte) {
	for _, reply := range r.taken {
		_ = r.of.js.Conn().Publish(reply, what)
	}
}
