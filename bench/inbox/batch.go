package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/worker"
	"github.com/oncemill/oncemill/producer"
)

// A batched handler is one behind a Processor that gets what is there at a time, as those of workers do.
type batched struct {
	once    *consumer.Processor
	batcher *worker.Batcher[waiting]
	pool    *batch.Pool
}

// A waiting message is told what became of it.
type waiting struct {
	delivery consumer.Delivery
	done     chan error
}

func openBatches(ctx context.Context, s servers) (system, error) {
	store, err := openPostgres(ctx, s)
	if err != nil {
		return nil, err
	}
	once, err := consumer.New(store.Inbox(), consumer.Config{Group: "bench"})
	if err != nil {
		return nil, err
	}
	b := batched{once: once, pool: &batch.Pool{}}
	b.batcher = &worker.Batcher[waiting]{Most: 64, Bytes: 1 << 20, AtOnce: 2, Pool: b.pool,
		Run: func(some []waiting) { b.run(ctx, some) }}
	return b, nil
}

func (b batched) handle(_ context.Context, id string, payload []byte) error {
	w := waiting{consumer.Delivery{
		Handler: "effect", Topic: "payments", Header: producer.Header{producer.HeaderID: id}, Payload: payload,
		Count: 1,
	}, make(chan error, 1)}
	b.batcher.Add(w, len(payload))
	return <-w.done
}

func (b batched) run(ctx context.Context, some []waiting) {
	deliveries, contexts := make([]consumer.Delivery, len(some)), slices.Repeat([]context.Context{ctx}, len(some))
	for i, w := range some {
		deliveries[i] = w.delivery
	}
	b.once.StartBatch(ctx, deliveries, contexts, func(ctx context.Context, which []int) []error {
		ids := make([]string, len(which))
		for n, i := range which {
			ids[n] = deliveries[i].Header[producer.HeaderID]
		}
		_, err := pgstore.Tx(ctx).Exec(ctx, `INSERT INTO effects (id, cents) SELECT unnest($1::text[]), 1200`, ids)
		if err != nil {
			return []error{err}
		}
		return nil
	}, func(i int, d consumer.Decision) {
		if d.Action != consumer.Ack || d.Err != nil {
			some[i].done <- fmt.Errorf("message %s: %s, %w", d.ID, d.Action, d.Err)
			return
		}
		some[i].done <- nil
	})
}

func (b batched) close() { b.pool.Wait() }
