package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

const (
	serverCPU = "server µs/msg"
	clientCPU = "client µs/msg"
	allocs    = "allocs/msg"
)

// costs compares what a message costs at 256 goroutines with the least that the server and the load cost. All variants
// do equally many messages: a larger hash table would cost the server more.
func costs(ctx context.Context, b *kit.Bench, server *kit.Redis) (err error) {
	const store, floor, noStore = "store, 256 goroutines", "floor, in pipelines", "no store, 256 goroutines"
	messages := inCell(b.Cell)
	full, err := openFull(server.Addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, full.close()) }()
	loaded := func(name string, c client) kit.Variant {
		return kit.Variant{Name: name, Measure: func(ctx context.Context) ([]kit.Figure, error) {
			return throughput(ctx, server, c, newLoad(256, math.MaxInt64, messages))
		}}
	}
	t, err := b.Compare(ctx, "Cost of a message, of equally many in all rows", b.Rounds,
		kit.Variant{Name: floor, Measure: func(ctx context.Context) ([]kit.Figure, error) {
			return pipelined(ctx, server, messages, floorPath)
		}},
		loaded(store, full),
		loaded(noStore, openNothing()))
	if err != nil {
		return err
	}
	b.Ratio("server_cpu_vs_floor", t.Ratio(store, floor, serverCPU))
	b.Value("allocs_per_message", t.Difference(store, noStore, allocs))
	return nil
}

// inCell is how many messages take about a cell.
func inCell(cell time.Duration) int64 { return int64(cell.Seconds() * 100_000) }

// costOf measures what server and client spend on each message of a piece of work.
func costOf(ctx context.Context, server *kit.Redis, work func() (messages int64, err error)) ([]kit.Figure, error) {
	usage, err := kit.Used()
	if err != nil {
		return nil, err
	}
	cpu, err := server.CPU(ctx)
	if err != nil {
		return nil, err
	}
	messages, err := work()
	if err != nil {
		return nil, err
	}
	cpuAfter, err := server.CPU(ctx)
	if err != nil {
		return nil, err
	}
	after, err := kit.Used()
	if err != nil {
		return nil, err
	}
	per := 1 / float64(messages)
	return []kit.Figure{
		{Name: serverCPU, Value: micros(cpuAfter-cpu) * per},
		{Name: clientCPU, Value: micros(after.CPU-usage.CPU) * per},
		{Name: allocs, Value: float64(after.Mallocs-usage.Mallocs) * per},
	}, nil
}
