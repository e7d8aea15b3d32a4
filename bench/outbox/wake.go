package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// wake compares how many transactions a second commit with Wake after each of them, and without. The relay runs in both of
// a pair, or in neither.
func wake(ctx context.Context, b *kit.Bench, r *rig) error {
	t, err := b.Compare(ctx, "Single inserts, 16 writers", commitRounds*b.Rounds,
		r.committing(noneRunning, false, true), r.committing(wakeRunning, true, true),
		r.committing(noneAlone, false, false), r.committing(wakeAlone, true, false),
	)
	if err != nil {
		return err
	}
	if t.Has(wakeRunning, noneRunning) {
		b.Aim("insert_wake_vs_none", t.Ratio(wakeRunning, noneRunning, commits), .9, 0)
	}
	if t.Has(wakeAlone, noneAlone) {
		b.Aim("insert_wake_vs_none_alone", t.Ratio(wakeAlone, noneAlone, commits), .9, 0)
	}
	return nil
}

const (
	commits      = "commits/s"
	commitRounds = 3 // of each of Options.Rounds: the pairs differ by little, and short ones see the same machine
)

func (r *rig) committing(name string, wakes, runs bool) kit.Variant {
	s := r.ours(byDefault)
	return variant(name, func(ctx context.Context) (figures []kit.Figure, err error) {
		if err := s.install(ctx); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.uninstall(context.WithoutCancel(ctx))) }()
		if err := r.postgres.Settle(ctx); err != nil {
			return nil, err
		}
		stream, err := r.freshStream(ctx)
		if err != nil {
			return nil, err
		}
		conn, err := nats.Connect(r.nats.URL)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		stop := func() error { return nil }
		if runs {
			if stop, err = s.relay(ctx, conn); err != nil {
				return nil, err
			}
		}
		n, err := s.commitFor(ctx, r.bench.Cell, wakes)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		figures = []kit.Figure{{Name: commits, Value: float64(n) / r.bench.Cell.Seconds()}}
		if !runs {
			return figures, r.publishAll(ctx, s, n)
		}
		if err := errors.Join(arrived(ctx, stream, n), stop()); err != nil {
			return nil, err
		}
		_, err = r.exact(ctx, s, stream, n)
		return figures, err
	})
}

// commitFor commits for some time, and says how many transactions there were.
func (o *ours) commitFor(ctx context.Context, d time.Duration, wakes bool) (int, error) {
	var next atomic.Int64
	end := time.Now().Add(d)
	err := side(writers, func() error {
		for time.Now().Before(end) {
			if err := o.write(ctx, payload(int(next.Add(1))-1)); err != nil {
				return err
			}
			if wakes {
				o.box.Wake()
			}
		}
		return nil
	})
	return int(next.Load()), err
}
