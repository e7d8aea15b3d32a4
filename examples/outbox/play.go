package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// A game is the service under its load.
type game struct {
	rig     *rig
	load    *load
	stopped chan struct{} // closed when there is no relay
	out     io.Writer     // for people

	rolledBack atomic.Int64
	brokenOff  atomic.Int64
	waited     atomic.Int64
}

// play runs the service, its relays and the load, and closes the books.
func play(ctx context.Context, o options, r *rig, orders []planned, out io.Writer) (Books, error) {
	r.publisher = newForgetful(r.publisher, o.seed)
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return Books{}, err
	}
	say(out, "%d orders by HTTP; the relay is stopped half way\n", o.orders)
	g := &game{rig: r, stopped: make(chan struct{}), out: out}
	g.load = newLoad(fmt.Sprintf("http://%s/orders", l.Addr()), orders, g.stopped, out)
	working, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		defer stop() // nobody waits for a service that broke
		served <- serve(working, l, handler(g.place), g.relays)
	}()
	err = g.load.run(working)
	if err == nil {
		err = g.settled(working)
	}
	stop()
	broken := <-served
	switch {
	case ctx.Err() != nil:
		return Books{}, errors.Join(fmt.Errorf("stopped after %d of %d orders", g.load.done.Load(), o.orders), broken)
	case broken != nil:
		return Books{}, fmt.Errorf("the service broke: %w", broken)
	case err != nil:
		return Books{}, err
	}
	return g.closeBooks(ctx)
}

// place is the rig's, with bookkeeping.
func (g *game) place(ctx context.Context, o shop.Order) (placed bool, err error) {
	placed, err = g.rig.place(ctx, o)
	switch {
	case errors.Is(err, errSoldOut) || errors.Is(err, errBusy):
		g.rolledBack.Add(1)
	case err != nil && ctx.Err() != nil:
		g.brokenOff.Add(1)
	}
	return placed, err
}

// relays runs one relay, and after a while without any the next one. The load's gate sees to it that orders come then.
func (g *game) relays(ctx context.Context) error {
	reached := func(percent int) func() bool {
		return func() bool { return int(g.load.done.Load())*100 >= len(g.load.orders)*percent }
	}
	run := relay(g.rig.database.outbox(), g.rig.publisher)
	first, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- run(first)
	}()
	await(first, reached(40))
	stop()
	if err := <-ended; err != nil || ctx.Err() != nil {
		return err
	}
	close(g.stopped)
	say(g.out, "the relay has drained and stopped; orders come all the same\n")
	if !await(ctx, reached(60)) {
		return nil
	}
	stats, err := g.rig.database.outbox().Stats(ctx)
	if err != nil {
		return fmt.Errorf("look into the outbox: %w", err)
	}
	g.waited.Store(int64(stats.Pending))
	say(g.out, "the next relay starts; %d events wait for it\n", stats.Pending)
	return run(ctx)
}

// await waits for a condition, and reports false if ctx ended before.
func await(ctx context.Context, met func() bool) bool {
	look := time.NewTicker(tick)
	defer look.Stop()
	for !met() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// patience is how long the outbox may stay as it is before it is empty.
const patience = 20 * time.Second

// settled waits until the relay has published everything.
func (g *game) settled(ctx context.Context) error {
	look := time.NewTicker(10 * tick)
	defer look.Stop()
	pending, since := -1, time.Now()
	for {
		stats, err := g.rig.database.outbox().Stats(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("look into the outbox: %w", err)
		case stats.Dead > 0:
			return fmt.Errorf("the broker refuses %d events", stats.Dead)
		case stats.Pending == 0:
			return nil
		case stats.Pending != pending:
			pending, since = stats.Pending, time.Now()
		case time.Since(since) > patience:
			return fmt.Errorf("%d events wait in the outbox, and none was published for %v", pending, patience)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// closeBooks asks the database and the broker.
func (g *game) closeBooks(ctx context.Context) (Books, error) {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	orders, err := g.rig.database.orders(ctx)
	if err != nil {
		return Books{}, fmt.Errorf("read the orders: %w", err)
	}
	events, err := g.rig.broker.events(ctx)
	if err != nil {
		return Books{}, fmt.Errorf("read the events: %w", err)
	}
	l := g.load
	b := closeBooks(orders, events, l.confirmed)
	b.Ordered, b.Requests, b.Repeated = len(l.orders), int(l.requests.Load()), int(l.repeated.Load())
	b.RolledBack, b.BrokenOff, b.Waited = int(g.rolledBack.Load()), int(g.brokenOff.Load()), int(g.waited.Load())
	return b, nil
}
