package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// patience is how long a run may stay as it is before everything is done.
const patience = 90 * time.Second

// settled waits until everything is published, and everything published is acknowledged. Servers may be away.
func (s *stage) settled(ctx context.Context, c *crew, out io.Writer) error {
	look := time.NewTicker(20 * tick)
	defer look.Stop()
	said, since := time.Now(), time.Now()
	before := ""
	for {
		done, state, err := s.state(ctx)
		switch {
		case done:
			return nil
		case state != before:
			before, since = state, time.Now()
		case time.Since(since) > patience:
			return fmt.Errorf("nothing has changed for %v: %s: %w", patience, state, errors.Join(errors.New("not everything is done"), err))
		}
		if time.Since(said) > 5*time.Second {
			said = time.Now()
			say(out, "all payments have an answer; %s\n", state)
		}
		if err := c.broken(); err != nil {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// state reports whether everything is done, and else describes what is left.
func (s *stage) state(ctx context.Context) (done bool, state string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stats, err := s.db.outbox().Stats(ctx)
	if err != nil {
		return false, "the outbox does not answer", err
	}
	charged, deliveries, err1 := s.broker.atRest(ctx, s.broker.paymentStream(), ledgerConsumer)
	notified, more, err2 := s.broker.atRest(ctx, s.broker.receiptStream(), notifyConsumer)
	if err := errors.Join(err1, err2); err != nil {
		return false, "the broker does not answer", err
	}
	state = fmt.Sprintf("%d messages wait in the outbox, %d are dead; %d and %d deliveries so far", stats.Pending, stats.Dead, deliveries, more)
	// What charge commits lies in the outbox, and what relays publish in the stream, so that the second look finds it.
	if !charged || stats.Pending > 0 || !notified {
		return false, state, nil
	}
	again, err := s.db.outbox().Stats(ctx)
	return err == nil && again.Pending == 0 && s.nothingCame(ctx, more), state, err
}

// nothingCame reports whether notify is still done.
func (s *stage) nothingCame(ctx context.Context, deliveries uint64) bool {
	done, now, err := s.broker.atRest(ctx, s.broker.receiptStream(), notifyConsumer)
	return err == nil && done && now == deliveries
}
