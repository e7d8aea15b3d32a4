package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/transport/franz"
)

// each is a worker with a handler of one record.
func each(order franz.Order) newWorker {
	return func(once *consumer.Processor, j *task) (*franz.Worker, error) {
		return franz.NewWorker(once, func(context.Context, *kgo.Record) error {
			j.handle()
			return nil
		}, franz.Config{Handler: "charge", Order: order})
	}
}

// batches is a worker with a handler of batches.
func batches(once *consumer.Processor, j *task) (*franz.Worker, error) {
	return franz.NewBatchWorker(once, func(_ context.Context, records []*kgo.Record) []error {
		for range records {
			j.handle()
		}
		return nil
	}, franz.BatchConfig{Config: franz.Config{Handler: "charge"}})
}

type newWorker func(*consumer.Processor, *task) (*franz.Worker, error)

// guarded is a worker on the Redis store, with everything else as it is by default. A record is done, here, when its
// handler is: what follows is awaited after the clock has stopped.
func guarded(worker newWorker) way {
	return func(ctx context.Context, j *task) (func() error, error) {
		j.dedup = true
		store, err := redisstore.New(j.rdb, redisstore.Config{})
		if err != nil {
			return nil, err
		}
		once, err := consumer.New(store, consumer.Config{Group: j.topic})
		if err != nil {
			return nil, err
		}
		w, err := worker(once, j)
		if err != nil {
			return nil, err
		}
		cl, err := kgo.NewClient(append(w.Opts(), j.reach...)...)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			err := w.Run(ctx, cl)
			if err != nil {
				j.fail(err) // nobody else would notice
			}
			ended <- err
		}()
		return func() error {
			defer store.Close()
			defer cl.CloseAllowingRebalance()
			cancel()
			return <-ended
		}, nil
	}
}
