package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

const (
	waitLimit = 3 * time.Minute // how long a measurement may take
	warming   = 3_000           // messages before the clock starts, times Options.Scale
	cells     = 2               // of Options.Cell
	known     = 5_000           // how many messages the duplicates are of
)

// variant is a measurement that has to end.
func variant(name string, measure func(ctx context.Context) ([]kit.Figure, error)) kit.Variant {
	return kit.Variant{Name: name, Measure: func(ctx context.Context) ([]kit.Figure, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, waitLimit, fmt.Errorf("it takes longer than %v", waitLimit))
		defer cancel()
		return measure(ctx)
	}}
}

// fresh measures how messages get their effect.
func (r *rig) fresh(name string, workers int, open opening) kit.Variant {
	return variant(name, func(ctx context.Context) (figures []kit.Figure, err error) {
		warmUp := max(int(warming*r.bench.Scale), 32)
		err = r.with(ctx, open, func(s system) error {
			if _, err := (load{workers: workers, messages: warmUp}).run(ctx, s); err != nil {
				return err
			}
			l := load{workers: workers, first: warmUp, messages: endless, duration: cells * r.bench.Cell}
			y, cost, err := r.run(ctx, l, s)
			if err != nil {
				return err
			}
			figures = cost
			return r.mustHave(ctx, warmUp+len(y.took))
		})
		return figures, err
	})
}

// duplicates measures how messages that have their effect are refused.
func (r *rig) duplicates(name string, open opening) kit.Variant {
	return variant(name, func(ctx context.Context) (figures []kit.Figure, err error) {
		messages := max(int(known*r.bench.Scale), 100)
		err = r.with(ctx, open, func(s system) error {
			if _, err := (load{workers: 16, messages: messages}).run(ctx, s); err != nil {
				return err
			}
			l := load{workers: 16, messages: endless, repeats: messages, duration: cells * r.bench.Cell}
			if _, figures, err = r.run(ctx, l, s); err != nil {
				return err
			}
			return r.mustHave(ctx, messages)
		})
		return figures, err
	})
}

// run runs a load that is measured.
func (r *rig) run(ctx context.Context, l load, s system) (y yield, figures []kit.Figure, err error) {
	if err := r.settle(ctx); err != nil {
		return y, nil, err
	}
	runtime.GC() // what the preparation has left
	err = r.bench.Profiled(func() error {
		before, err := r.servers().Spent(ctx)
		if err != nil {
			return err
		}
		if y, err = l.run(ctx, s); err != nil {
			return err
		}
		after, err := r.servers().Spent(ctx)
		figures = append(y.figures(), r.servers().Figures(before, after, len(y.took))...)
		return err
	})
	return y, figures, err
}
