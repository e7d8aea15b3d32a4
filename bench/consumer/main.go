// Program consumer measures the way of a message from JetStream through a handler that does nothing. It compares
// Oncemill on Redis with the usual middleware on the stock adapter, which SETs before and after, and with the same
// subscribers without deduplication. Every variant has to handle each message exactly once and to get every
// acknowledgement to the server.
package main

import (
	"context"
	"errors"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// Names of variants.
const (
	naive1     = "stock, naive SETs, 1 subscription"
	naive16    = "stock, naive SETs, 16 subscriptions"
	ours       = "ours, dedup"
	oursPlain  = "ours, without dedup"
	stockPlain = "stock, without dedup"

	workerDedup = "worker, dedup"
	batchDedup  = "batch worker, dedup"
	rawConsume  = "raw Consume, async acks"
)

var experiments = []kit.Experiment{
	{Name: "router", Variants: []string{naive1, naive16, ours, oursPlain, stockPlain}, Run: withRig(router)},
	{Name: "worker", Variants: []string{workerDedup, batchDedup, rawConsume}, Run: withRig(worker)},
	{Name: "lone", Variants: []string{workerDedup, ours, rawConsume}, Run: withRig(lone)},
}

func main() { kit.Main(experiments...) }

// withRig gives an experiment servers of its own.
func withRig(run func(context.Context, *kit.Bench, *rig) error) func(context.Context, *kit.Bench) error {
	return func(ctx context.Context, b *kit.Bench) (err error) {
		r, err := startRig(b)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.stop()) }()
		return run(ctx, b, r)
	}
}

// router compares what runs in a Watermill Router. The numbers of messages make all take about as long.
func router(ctx context.Context, b *kit.Bench, r *rig) error {
	t, err := b.Compare(ctx, "A Watermill Router on JetStream, 256 bytes, no-op handler", b.Rounds,
		r.variant(naive1, 8_000, naive(1)),
		r.variant(naive16, 20_000, naive(16)),
		r.variant(ours, 50_000, guardedRouter),
		r.variant(oursPlain, 80_000, plainRouter),
		r.variant(stockPlain, 80_000, stockRouter),
	)
	if err != nil {
		return err
	}
	for _, a := range []struct {
		name, row, by  string
		required, goal float64
	}{
		{"dedup_vs_naive_1sub", ours, naive1, 6, 10},
		{"dedup_vs_naive_16subs", ours, naive16, 2.6, 4},
		{"dedup_vs_plain", ours, oursPlain, .5, .75},
		{"plain_vs_stock", oursPlain, stockPlain, .85, 0},
	} {
		if t.Has(a.row, a.by) {
			b.Aim(a.name, t.Ratio(a.row, a.by, rate), a.required, a.goal)
		}
	}
	return nil
}

// worker compares what runs without a Router.
func worker(ctx context.Context, b *kit.Bench, r *rig) error {
	t, err := b.Compare(ctx, "Plain nats.go, 256 bytes, no-op handler", b.Rounds,
		r.variant(workerDedup, 50_000, guardedWorker),
		r.variant(batchDedup, 80_000, batchWorker),
		r.variant(rawConsume, 150_000, consumeRaw),
	)
	if err != nil {
		return err
	}
	if t.Has(workerDedup, rawConsume) {
		b.Ratio("worker_vs_raw", t.Ratio(workerDedup, rawConsume, rate))
	}
	if t.Has(batchDedup, rawConsume) {
		b.Ratio("batch_vs_raw", t.Ratio(batchDedup, rawConsume, rate))
	}
	return nil
}
