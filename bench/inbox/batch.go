package main

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/internal/worker"
	"github.com/oncemill/oncemill/producer"
)

// A batched handler is one behind a Processor that gets what is there at a time, as those of workers do.
type batched struct {
	loop *worker.Loop
	run  *worker.Assignment
}

// A waiting message is told what became of it.
type waiting struct {
	worker.Item
	delivery consumer.Delivery
	done     chan error
}

// Delivery is the message.
func (w *waiting) Delivery(int) (consumer.Delivery, time.Time) { return w.delivery, time.Time{} }

// Acked says that the effect is there.
func (w *waiting) Acked(context.Context) { w.done <- nil }

// Decided says that it is not.
func (w *waiting) Decided(_ context.Context, d consumer.Decision) (due time.Time, again bool) {
	w.done <- fmt.Errorf("message %s: %s, %w", d.ID, d.Action, d.Err)
	return due, false
}

const mostInBatch = 64

func openBatches(ctx context.Context, c clients) (system, error) {
	store, err := openPostgres(ctx, c)
	if err != nil {
		return nil, err
	}
	return newBatched(ctx, store.Inbox(), func(ctx context.Context, ids []string) error {
		_, err := pgstore.Tx(ctx).Exec(ctx, `INSERT INTO effects (id, cents) SELECT unnest($1::text[]), 1200`, ids)
		return err
	})
}

func newBatched(
	ctx context.Context, store dedupstore.Store, insert func(ctx context.Context, ids []string) error,
) (system, error) {
	once, err := consumer.New(store, consumer.Config{Group: "bench"})
	if err != nil {
		return nil, err
	}
	insertAll := func(ctx context.Context, messages []worker.Message) []error {
		ids := make([]string, len(messages))
		for i, m := range messages {
			ids[i] = m.(*waiting).delivery.Header[producer.HeaderID]
		}
		if err := insert(ctx, ids); err != nil {
			return []error{err}
		}
		return nil
	}
	loop := worker.New(worker.Work{
		Once: once, Handler: "effect", Batch: insertAll, Batches: worker.Batches{Most: mostInBatch}.WithDefaults(),
	}, 2*mostInBatch)
	return batched{loop, loop.Assign(ctx, nil, 1<<30, func() {})}, nil
}

func (b batched) handle(_ context.Context, id string, payload []byte) error {
	w := &waiting{delivery: consumer.Delivery{
		Topic: "payments", Header: producer.Header{producer.HeaderID: id}, Payload: payload, Count: 1,
	}, done: make(chan error, 1)}
	w.Message = w
	b.run.Receive([]*worker.Item{&w.Item})
	return <-w.done
}

func (b batched) close() {
	b.run.Halt()
	<-b.run.Ended()
	b.loop.Wait()
}
