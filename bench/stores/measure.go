package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/dedupstore"
)

const (
	callers = 128
	cells   = 2 // of Options.Cell a measurement lasts
	sampled = 50

	rate = "msgs/s"
)

// A server has a store before it, and what somebody would write with the client alone.
type server struct {
	store dedupstore.Store
	hand  way                             // nil: there is no client
	reset func(ctx context.Context) error // empties both; nil: they keep what they have

	// extra is what the server says about so many messages. Nil: nothing.
	extra func(ctx context.Context, messages float64) ([]kit.Figure, error)

	kit.Cleanups
}

// issued counts the messages, so that no two have an ID in common.
var issued atomic.Int64

// measure takes fresh messages through claim and settle, after a warm-up.
func (s *server) measure(b *kit.Bench, w way) func(context.Context) ([]kit.Figure, error) {
	process := func(ctx context.Context, _ int64) (time.Duration, error) {
		begun := time.Now()
		settle, err := w(ctx, newMessage(issued.Add(1)))
		if err == nil {
			err = settle(ctx)
		}
		return time.Since(begun), err
	}
	return func(ctx context.Context) (figures []kit.Figure, err error) {
		if s.reset != nil {
			if err := s.reset(ctx); err != nil {
				return nil, err
			}
		}
		_, warmUp, err := kit.Load{Workers: callers, Duration: b.Cell / 2}.Run(ctx, process)
		if err != nil {
			return nil, err
		}
		runtime.GC() // what the warm-up has left
		var took []time.Duration
		err = b.Profiled(func() error {
			before, err := used()
			if err != nil {
				return err
			}
			load := kit.Load{Workers: callers, Duration: cells * b.Cell}
			elapsed, each, err := load.Run(ctx, process)
			if err != nil {
				return err
			}
			took = each
			after, err := used()
			n := float64(len(took))
			micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / n }
			figures = []kit.Figure{
				{Name: rate, Value: n / elapsed.Seconds()},
				{Name: "p99 ms", Value: kit.Percentile(took, .99).Seconds() * 1000},
				{Name: "client µs/msg", Value: micros(after.client - before.client)},
				{Name: "server µs/msg", Value: micros(after.server - before.server)},
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if s.extra != nil {
			extra, err := s.extra(ctx, float64(len(warmUp)+len(took)))
			if err != nil {
				return nil, err
			}
			figures = append(figures, extra...)
		}
		return figures, check(ctx, w)
	}
}

// recordSize is what a record takes.
func recordSize(size int64, messages float64) []kit.Figure {
	return []kit.Figure{{Name: "bytes/record", Value: float64(size) / messages}}
}

// check wants the last messages to be done.
func check(ctx context.Context, w way) error {
	for n := issued.Load(); n > 0 && n > issued.Load()-sampled; n-- {
		if _, err := w(ctx, newMessage(n)); !errors.Is(err, errDone) {
			return fmt.Errorf("message %d was settled, and another claim of it is granted, or fails: %w", n, err)
		}
	}
	return nil
}

// usage is the CPU that everybody has used.
type usage struct{ client, server time.Duration }

func used() (usage, error) {
	own, err := kit.Used()
	servers, err2 := kit.ServersCPU()
	return usage{own.CPU, servers}, errors.Join(err, err2)
}
