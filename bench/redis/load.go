package main

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// A load drives a client from some goroutines, each with one message at a time, until the time is over or the messages
// are. IDs are fresh in each load.
type load struct {
	goroutines int
	duration   time.Duration
	messages   int64
	cell       int // makes the IDs
}

const endless = 1 << 40

// A yield is what a load achieved.
type yield struct {
	messages int64
	elapsed  time.Duration
	claims   []time.Duration // how long each claim took
}

func (y yield) rate() kit.Figure {
	return kit.Figure{Name: "msgs/s", Value: float64(y.messages) / y.elapsed.Seconds()}
}

const p99 = "claim p99 µs"

// latency sorts the claims.
func (y yield) latency() []kit.Figure {
	return []kit.Figure{
		{Name: "claim p50 µs", Value: micros(kit.Percentile(y.claims, .5))},
		{Name: p99, Value: micros(kit.Percentile(y.claims, .99))},
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// cells counts the loads, so that no two have a message ID in common.
var cells atomic.Int32

func newLoad(goroutines int, duration time.Duration, messages int64) load {
	return load{goroutines, duration, messages, int(cells.Add(1))}
}

// run returns the first error, and then means nothing else.
func (l load) run(ctx context.Context, c client) (yield, error) {
	drive := kit.Load{Workers: l.goroutines, Messages: l.messages, Duration: l.duration}
	elapsed, claims, err := drive.Run(ctx, func(ctx context.Context, n int64) (time.Duration, error) {
		return c.process(ctx, numbered(l.cell, n))
	})
	return yield{int64(len(claims)), elapsed, claims}, err
}

// sample reads the records of 50 of the messages back, of so many that were processed.
func (l load) sample(ctx context.Context, c client, messages int64) error {
	for range 50 {
		if err := c.check(ctx, numbered(l.cell, rand.Int64N(messages))); err != nil {
			return err
		}
	}
	return nil
}
