package shop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/oncemill/oncemill/dedupstore"
)

// A run is an example at work.
type run struct {
	options    Options
	out        io.Writer // for people
	ledger     *Ledger
	bank       *Bank
	metrics    metrics
	store      dedupstore.Store
	closeStore func() error
	broker     Broker
	placed     atomic.Int64
}

func (e Example) open(ctx context.Context, o Options, dir string, out io.Writer) (*run, error) {
	r := &run{options: o, out: &shared{w: out}, closeStore: func() error { return nil }}
	var err error
	if r.metrics, err = newMetrics(ctx, e.Name); err != nil {
		return nil, err
	}
	if err := r.open(ctx, e, dir); err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	return r, nil
}

func (r *run) open(ctx context.Context, e Example, dir string) error {
	var err error
	if r.ledger, err = openLedger(r.options.Ledger, r.options.Temporary()); err != nil {
		return err
	}
	r.bank = newBank(r.options, r.ledger)
	if r.options.Role != RoleProducer {
		store, closeStore, err := openStore(ctx, r.options)
		if err != nil {
			return err
		}
		r.store, r.closeStore = store, closeStore
		if e.Wrap != nil {
			r.store = e.Wrap(store)
		}
	}
	r.broker, err = e.Open(ctx, r.options, dir)
	return err
}

// close ends what open began, in the opposite order.
func (r *run) close(ctx context.Context) error {
	var err error
	if r.broker != nil {
		err = r.broker.Close(ctx)
	}
	err = errors.Join(err, r.closeStore())
	if r.ledger != nil {
		err = errors.Join(err, r.ledger.file.Close())
	}
	r.metrics.stop(ctx)
	return err
}

// play plays the roles until their end, or that of ctx.
func (r *run) play(ctx context.Context) error {
	defer r.progress()()
	switch o := r.options; o.Role {
	case RoleProducer:
		say(r.out, "placing %d orders of run %s\n", o.Orders, o.Run)
		err := r.produce(ctx)
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("stopped after %d of %d orders; their retries may be missing", r.placed.Load(), o.Orders)
		}
		return err
	case RoleConsumer:
		say(r.out, "consuming run %s until interrupted; its ledger is %s\n", o.Run, o.Ledger)
		return r.broker.Consume(ctx, r.store, r.bank)
	default:
		say(r.out, "%d orders; the consumer restarts half way\n", o.Orders)
		return r.playBoth(ctx)
	}
}

// playBoth runs the producer, and one consumer after another: the first is stopped in the middle.
func (r *run) playBoth(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	produced := make(chan struct{})
	go func() {
		defer close(produced)
		if failed = r.produce(ctx); failed != nil {
			cancel() // nobody waits for orders that will not come
		}
	}()
	err := r.consumeUntil(ctx, func(context.Context) bool { return r.ledger.charges.Load() >= int64(r.options.Orders/2) })
	if err == nil && ctx.Err() == nil {
		say(r.out, "the consumer has drained and stopped; the next one starts\n")
		err = r.consumeUntil(ctx, r.settled(produced))
	}
	cancel()
	<-produced
	if errors.Is(failed, context.Canceled) {
		failed = nil // it was told to stop
	}
	return errors.Join(failed, err)
}
