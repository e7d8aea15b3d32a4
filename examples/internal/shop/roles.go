package shop

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// produce places the orders, and does what unlucky producers and careless relays do. When it is stopped, it returns the
// error of ctx.
func (r *run) produce(ctx context.Context) error {
	err := r.placeAll(ctx)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (r *run) placeAll(ctx context.Context) error {
	var retries []retry
	next := time.NewTicker(pace)
	defer next.Stop()
	for _, p := range plan(r.options) {
		select {
		case <-next.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := r.place(ctx, p); err != nil {
			return fmt.Errorf("place order %s: %w", p.ID, err)
		}
		if p.luck == retried {
			retries = append(retries, retry{p.Order, time.Now().Add(retryDelay)})
		}
		due := 0
		for due < len(retries) && !retries[due].due.After(time.Now()) {
			due++
		}
		if err := r.retry(ctx, retries[:due]); err != nil {
			return err
		}
		retries = retries[due:]
	}
	return r.retry(ctx, retries)
}

// A retry is what a producer will do that missed an acknowledgement.
type retry struct {
	order Order
	due   time.Time
}

func (r *run) place(ctx context.Context, p planned) error {
	if err := r.ledger.write(entryOrder, p.ID); err != nil {
		return err
	}
	if err := r.broker.Place(ctx, p.Order); err != nil {
		return err
	}
	r.placed.Add(1)
	if p.luck != relayed {
		return nil
	}
	if err := r.broker.Repeat(ctx, p.Order); err != nil {
		return err
	}
	return r.ledger.write(entryCopy, p.ID)
}

// retry places orders again, each when it is due.
func (r *run) retry(ctx context.Context, retries []retry) error {
	for _, again := range retries {
		wait := time.NewTimer(time.Until(again.due))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		}
		if err := r.broker.Place(ctx, again.order); err != nil {
			return fmt.Errorf("place order %s again: %w", again.order.ID, err)
		}
		if err := r.ledger.write(entryCopy, again.order.ID); err != nil {
			return err
		}
	}
	return nil
}

// patience is how long nothing may happen.
const patience = 60 * time.Second

// consumeUntil runs one consumer until the condition is met, and lets it drain.
func (r *run) consumeUntil(ctx context.Context, met func(context.Context) bool) error {
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	ended := make(chan error, 1)
	go func() { ended <- r.broker.Consume(ctx, r.store, r.bank) }()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	done, since := int64(0), time.Now()
	for {
		select {
		case err := <-ended:
			if err == nil && ctx.Err() == nil {
				err = errors.New("the consumer ended by itself")
			}
			return err
		case <-look.C:
		}
		if met(ctx) {
			drain()
			return <-ended
		}
		switch now := r.placed.Load() + r.ledger.charges.Load(); {
		case now != done:
			done, since = now, time.Now()
		case time.Since(since) > patience:
			drain()
			return errors.Join(fmt.Errorf("nothing has happened for %v", patience), <-ended)
		}
	}
}

// settled returns a condition: the producer has ended, and everything has been acknowledged, and still so a moment later.
func (r *run) settled(produced <-chan struct{}) func(context.Context) bool {
	quiet := 0
	return func(ctx context.Context) bool {
		select {
		case <-produced:
		default:
			return false
		}
		quiet++
		if rest, err := r.broker.AtRest(ctx); !rest || err != nil { // when it cannot be told, something is under way
			quiet = 0
		}
		return quiet == 5
	}
}

// closeBooks reads the ledger, and asks the broker.
func (r *run) closeBooks(ctx context.Context) (Books, error) {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	entries, err := r.ledger.read()
	if err != nil {
		return Books{}, err
	}
	dead, err := r.broker.DeadLetters(ctx)
	if err != nil {
		return Books{}, fmt.Errorf("read the dead letters: %w", err)
	}
	b := closeBooks(entries, dead)
	if b.Deliveries, err = r.broker.Deliveries(ctx); err != nil {
		return b, fmt.Errorf("count the deliveries: %w", err)
	}
	b.Suppressed, err = r.metrics.suppressed(ctx)
	return b, err
}
