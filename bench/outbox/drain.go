package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/outbox"
)

const (
	backlog    = 30_000
	byDefault  = time.Duration(0) // of outbox.Config.Retention
	copiesName = "copies"
)

// drain compares how fast a backlog gets into the stream.
func drain(ctx context.Context, b *kit.Bench, r *rig) error {
	t, err := b.Compare(ctx, fmt.Sprintf("A backlog of %d rows to JetStream", r.backlog()), b.Rounds,
		r.draining(forwarding, &watermillForwarder{pool: r.pool}),
		r.draining(relaying, r.ours(byDefault)),
		r.draining(removing, r.ours(outbox.DeleteAtOnce)),
		r.draining(reading, r.log()),
		r.draining(rivering, &riverQueue{pool: r.pool, cooldown: 10 * time.Millisecond}),
		r.draining(riveringFast, &riverQueue{pool: r.pool, cooldown: time.Millisecond}),
	)
	if err != nil {
		return err
	}
	for _, a := range []struct {
		name, row, by  string
		required, goal float64
	}{
		{"drain_vs_forwarder", relaying, forwarding, 14, 25},
		{"drain_vs_river", relaying, rivering, 6, 10},
		{"drain_vs_river_fast", relaying, riveringFast, 0, 0},
		{"drain_removed_vs_forwarder", removing, forwarding, 0, 0},
		{"drain_log_vs_forwarder", reading, forwarding, 0, 0},
	} {
		if t.Has(a.row, a.by) {
			b.Aim(a.name, t.Ratio(a.row, a.by, rate), a.required, a.goal)
		}
	}
	return nil
}

// draining writes a backlog into empty tables, and measures until it is in the stream.
func (r *rig) draining(name string, s system) kit.Variant {
	return variant(name, func(ctx context.Context) (figures []kit.Figure, err error) {
		if err := s.install(ctx); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.uninstall(context.WithoutCancel(ctx))) }()
		if err := fill(ctx, s, r.backlog()); err != nil {
			return nil, err
		}
		return r.empty(ctx, s, r.backlog())
	})
}

// empty measures until so many messages, all that there are, are in the stream.
func (r *rig) empty(ctx context.Context, s system, messages int) (figures []kit.Figure, err error) {
	stream, err := r.freshStream(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := nats.Connect(r.nats.URL)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := r.postgres.Settle(ctx); err != nil {
		return nil, err
	}
	runtime.GC() // what filling has left
	var stop func() error
	err = r.bench.Profiled(func() (err error) {
		figures, err = r.cost(ctx, messages, func() error {
			if stop, err = s.relay(ctx, conn); err != nil {
				return err
			}
			return arrived(ctx, stream, messages)
		})
		return err
	})
	if stop != nil {
		err = errors.Join(err, stop())
	}
	if err != nil {
		return nil, err
	}
	n, err := r.exact(ctx, s, stream, messages)
	return append(figures, kit.Figure{Name: copiesName, Value: float64(n)}), err
}

// exact counts copies. It is an error unless all messages were published, and the system knows that.
func (r *rig) exact(ctx context.Context, s system, stream jetstream.Stream, messages int) (int, error) {
	n, err := copies(ctx, stream, messages)
	if err != nil {
		return 0, err
	}
	left, err := s.left(ctx)
	if err == nil && left != 0 {
		err = fmt.Errorf("%d of %d messages are still to be published", left, messages)
	}
	return n, err
}
