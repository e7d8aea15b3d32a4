package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/observe"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A demo is everything that runs.
type demo struct {
	options   options
	orders    []plannedOrder
	shop      *shop
	broker    *broker
	store     keptStore
	publisher producer.Publisher
	stacks    []*stack
	metrics   *metric.ManualReader

	telemetry     oncemill.Telemetry
	stopTelemetry func(context.Context)
}

func open(ctx context.Context, o options) (*demo, error) {
	d := &demo{options: o}
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *demo) open(ctx context.Context) error {
	// What the guard counts, as a program's metrics would show it.
	d.metrics = metric.NewManualReader()
	telemetry, stop, err := observe.Start(ctx, "quickstart", d.metrics)
	if err != nil {
		return err
	}
	d.telemetry, d.stopTelemetry = telemetry, stop
	if d.shop, err = openShop(ctx, d.options.dir); err != nil {
		return err
	}
	if d.broker, err = startBroker(ctx, d.shop.names, d.options.natsURL, d.options.dir); err != nil {
		return err
	}
	if d.publisher, err = natsjs.NewPublisher(d.broker.js, natsjs.PublisherConfig{
		Logger:    slog.New(slog.DiscardHandler), // repeats are what this demo is made of
		Telemetry: telemetry,
	}); err != nil {
		return err
	}
	if d.store, err = openStore(ctx, d.options); err != nil {
		return err
	}
	d.orders = plan(d.shop.names.run, d.options)
	if err := d.shop.hasOnly(ctx, d.orders); err != nil {
		return err
	}
	fates := map[string]fault{}
	for _, o := range d.orders {
		fates[o.ID] = o.fault
	}
	for _, name := range stackNames {
		s := &stack{name: name, names: d.shop.names, shop: d.shop, fates: fates, telemetry: telemetry}
		var own dedupstore.Store
		if name == guarded {
			s.death = newMortality(d.store.Store, d.shop)
			own = s.death
		}
		d.stacks = append(d.stacks, s)
		if err := s.start(ctx, d.broker, own, d.publisher); err != nil {
			return err
		}
	}
	return nil
}

// play places the orders, waits until everything has come to rest, and closes the books.
func (d *demo) play(ctx context.Context, progress io.Writer) (map[string]books, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	relays := make(chan error, 1)
	go func() { relays <- runRelays(ctx, d.shop, d.publisher, d.stacks[0].fates, d.telemetry) }()

	p := newProgress(ctx, progress, d)
	l := &load{shop: d.shop, broker: d.broker, orders: d.orders}
	err := l.run(ctx, func() { p.placed.Add(1) })
	if err == nil {
		err = d.settle(ctx)
	}
	p.stop()
	cancel()
	err = errors.Join(err, <-relays)
	if err != nil {
		return nil, err
	}
	return d.closeBooks(context.WithoutCancel(ctx))
}

// settle waits until the outbox is empty and every stack has acknowledged all there is, and still so a moment later.
func (d *demo) settle(ctx context.Context) error {
	quiet := 0
	return poll(ctx, 100*time.Millisecond, func() (bool, error) {
		if d.atRest(ctx) {
			quiet++
		} else {
			quiet = 0
		}
		return quiet == 5, nil
	})
}

// atRest reports whether nothing is under way. When it cannot be told, something is.
func (d *demo) atRest(ctx context.Context) bool {
	stats, err := d.shop.box.Stats(ctx)
	if err != nil || stats.Pending > 0 {
		return false
	}
	for _, s := range d.stacks {
		cons, err := d.broker.js.Consumer(ctx, d.broker.names.stream(), s.name)
		if err != nil {
			return false
		}
		info, err := cons.Info(ctx)
		if err != nil || info.NumPending > 0 || info.NumAckPending > 0 {
			return false
		}
	}
	return true
}

func (d *demo) closeBooks(ctx context.Context) (map[string]books, error) {
	all := map[string]books{}
	for _, s := range d.stacks {
		counts := map[string]int{}
		if s.name == guarded {
			var err error
			if counts, err = d.claims(ctx); err != nil {
				return nil, err
			}
		}
		b, err := closeBooks(ctx, s, d.broker, d.orders, counts)
		if err != nil {
			return nil, fmt.Errorf("close the books of %s: %w", s.name, err)
		}
		all[s.name] = b
	}
	return all, nil
}

// claims reads the counter oncemill.claims by outcome.
func (d *demo) claims(ctx context.Context) (map[string]int, error) {
	var data metricdata.ResourceMetrics
	if err := d.metrics.Collect(ctx, &data); err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, ok := m.Data.(metricdata.Sum[int64])
			if !ok || m.Name != "oncemill.claims" {
				continue
			}
			for _, point := range sum.DataPoints {
				outcome, _ := point.Attributes.Value("oncemill.outcome")
				counts[outcome.AsString()] += int(point.Value)
			}
		}
	}
	return counts, nil
}

// close ends what open began, in the opposite order.
func (d *demo) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	for _, s := range d.stacks {
		err = errors.Join(err, s.stop(ctx))
	}
	if d.broker != nil && d.options.temporary {
		err = errors.Join(err, d.broker.remove(ctx))
	}
	if d.store.close != nil {
		err = errors.Join(err, d.store.close())
	}
	if d.broker != nil {
		d.broker.close()
	}
	if d.shop != nil {
		err = errors.Join(err, d.shop.db.Close())
	}
	if d.stopTelemetry != nil {
		d.stopTelemetry(ctx)
	}
	return err
}
