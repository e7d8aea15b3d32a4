package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A load places the planned orders, and does what careless or unlucky producers do to them.
type load struct {
	shop   *shop
	broker *broker
	orders []plannedOrder
}

// producers is how many customers press buttons at once.
const producers = 4

// run places all orders and returns when every fault of the producers has been injected.
func (l *load) run(ctx context.Context, placed func()) error {
	var all sync.WaitGroup
	errs := make([]error, producers)
	for p := range producers {
		all.Go(func() {
			for i := p; i < len(l.orders) && errs[p] == nil; i += producers {
				errs[p] = l.place(ctx, l.orders[i])
				placed()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// place places one order until that worked, and injects its fault if that is the producer's.
func (l *load) place(ctx context.Context, p plannedOrder) error {
	if err := untilDone(ctx, func() error { return l.shop.place(ctx, p.order) }); err != nil {
		return fmt.Errorf("place %s: %w", p.ID, err)
	}
	copies := p.copies()
	if copies == nil {
		return nil
	}
	if first, err := l.shop.once(ctx, "producer", p.ID); err != nil || !first {
		return err
	}
	if p.fault == changedAmount { // the first amount is to win: the point is what becomes of the second
		if err := l.charged(ctx, p.ID); err != nil {
			return err
		}
	}
	return l.send(ctx, copies)
}

// copies are what the producers send of an order past the outbox.
func (p plannedOrder) copies() []order {
	switch p.fault {
	case producerRetry, poisonOrder: // a poison order is sent again too: its failure is replayed
		return []order{p.order}
	case twinCopies:
		return []order{p.order, p.order}
	case changedAmount:
		return []order{{ID: p.ID, Amount: p.Amount + 1}}
	}
	return nil
}

// send publishes copies past the outbox, at once.
func (l *load) send(ctx context.Context, copies []order) error {
	var all sync.WaitGroup
	errs := make([]error, len(copies))
	for i, o := range copies {
		all.Go(func() {
			body, err := json.Marshal(o)
			if err == nil {
				err = untilDone(ctx, func() error { return l.broker.publishCopy(ctx, o.ID, body) })
			}
			errs[i] = err
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// charged waits until the guarded stack has charged an order.
func (l *load) charged(ctx context.Context, orderID string) error {
	return poll(ctx, 10*time.Millisecond, func() (bool, error) {
		var n int
		err := l.shop.db.QueryRowContext(ctx, `SELECT count(*) FROM ledger WHERE stack = ? AND order_id = ?`, guarded, orderID).Scan(&n)
		return n > 0, err
	})
}

// untilDone repeats what fails while a server is away.
func untilDone(ctx context.Context, do func() error) error {
	var last error
	err := poll(ctx, 100*time.Millisecond, func() (bool, error) {
		last = do()
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// poll asks until the answer is yes.
func poll(ctx context.Context, every time.Duration, ask func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		yes, err := ask()
		if err != nil || yes {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
