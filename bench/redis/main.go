// Program redis measures the Redis store against what Redis itself and go-redis can do: throughput, allocations, the
// server's CPU, memory, and latency as records accumulate. Every variant works on fresh keys of 40 bytes and full
// records (owner, fence, attempts, lease, fingerprint, trace), and has to prove that it did its work.
package main

import (
	"context"
	"errors"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

var experiments = []kit.Experiment{
	{Name: "clients", Run: alone(clients)},
	{Name: "costs", Run: alone(costs)},
	{Name: "paths", Run: alone(paths)},
	{Name: "memory", Run: alone(memory)},
	{Name: "growth", Run: growth},
}

func main() { kit.Main(experiments...) }

// alone gives an experiment a server of its own.
func alone(run func(context.Context, *kit.Bench, *kit.Redis) error) func(context.Context, *kit.Bench) error {
	return func(ctx context.Context, b *kit.Bench) (err error) {
		server, err := kit.StartRedis()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		return run(ctx, b, server)
	}
}
