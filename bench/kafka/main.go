// Program kafka measures the way of a record from Kafka through a handler that does nothing. It compares a franz.Worker
// on Redis with a loop of franz-go that polls, handles and commits. Every variant has to handle each record exactly
// once and to have each offset committed.
package main

import (
	"context"
	"errors"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/transport/franz"
)

// Names of variants.
const (
	workerDedup   = "worker, dedup, PerPartition"
	workerByKey   = "worker, dedup, PerKey"
	workerBatches = "worker, dedup, batches"
	rawLoop       = "raw loop, commit after each poll"
)

var experiments = []kit.Experiment{
	{Name: "worker", Variants: []string{workerDedup, workerByKey, workerBatches, rawLoop}, Run: worker},
}

func main() { kit.Main(experiments...) }

// worker compares what runs on the servers of this run. The numbers of records make all take about as long.
func worker(ctx context.Context, b *kit.Bench) (err error) {
	r, err := startRig(b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	t, err := b.Compare(ctx, "Plain franz-go, 256 bytes, no-op handler", b.Rounds,
		r.variant(workerDedup, 60_000, guarded(each(franz.PerPartition))),
		r.variant(workerByKey, 120_000, guarded(each(franz.PerKey))),
		r.variant(workerBatches, 120_000, guarded(batches)),
		r.variant(rawLoop, 1_500_000, raw),
	)
	if err != nil {
		return err
	}
	for _, result := range []struct{ name, row string }{
		{"kafka_worker_vs_raw", workerDedup},
		{"kafka_worker_per_key_vs_raw", workerByKey},
		{"kafka_worker_batches_vs_raw", workerBatches},
	} {
		if t.Has(result.row, rawLoop) {
			b.Ratio(result.name, t.Ratio(result.row, rawLoop, rate))
		}
	}
	return nil
}
