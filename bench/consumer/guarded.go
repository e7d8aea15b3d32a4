package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/transport/natsjs"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// window is how many messages are in flight.
const window = 256

// guardedRouter is a Router with Oncemill's middleware on Oncemill's subscriber.
var guardedRouter = way{dedup: true, run: func(ctx context.Context, j *task) (func() error, error) {
	once, closeStore, err := processor(j)
	if err != nil {
		return nil, err
	}
	source, err := newSubscriber(once, j)
	if err != nil {
		return nil, err
	}
	closeRouter, err := runRouter(ctx, j, source, 1, oncewatermill.Middleware(once))
	if err != nil {
		return nil, err
	}
	return func() error {
		defer closeStore()
		return errors.Join(closeRouter(), once.Close(context.WithoutCancel(ctx)))
	}, nil
}}

// plainRouter is the same without dedup.
var plainRouter = way{run: func(ctx context.Context, j *task) (func() error, error) {
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{}) // which nobody asks
	if err != nil {
		return nil, err
	}
	once, err := consumer.New(store, consumer.Config{Group: durable})
	if err != nil {
		return nil, err
	}
	source, err := newSource(once, j)
	if err != nil {
		return nil, err
	}
	return runRouter(ctx, j, newPlainSubscriber(source), 1, nil)
}}

// guardedWorker has no Router. A message is done, here, when its handler is: nobody sees what follows, and that is awaited
// after the clock has stopped.
var guardedWorker = way{dedup: true, run: func(ctx context.Context, j *task) (func() error, error) {
	once, closeStore, err := processor(j)
	if err != nil {
		return nil, err
	}
	handle := func(context.Context, jetstream.Msg) error {
		j.handle()
		j.settle(nil)
		return nil
	}
	w, err := natsjs.NewWorker(once, j.js, j.consumer, handle, natsjs.Config{Handler: "charge", MaxInFlight: window})
	if err != nil {
		return nil, err
	}
	return runWorker(ctx, j, w, closeStore), nil
}}

// batchWorker is the same work in batches.
var batchWorker = way{dedup: true, run: func(ctx context.Context, j *task) (func() error, error) {
	once, closeStore, err := processor(j)
	if err != nil {
		return nil, err
	}
	handle := func(_ context.Context, msgs []jetstream.Msg) []error {
		for range msgs {
			j.handle()
			j.settle(nil)
		}
		return nil
	}
	w, err := natsjs.NewBatchWorker(once, j.js, j.consumer, handle, natsjs.BatchConfig{
		Config: natsjs.Config{Handler: "charge", MaxInFlight: 2 * window}, MaxBatch: window,
	})
	if err != nil {
		return nil, err
	}
	return runWorker(ctx, j, w, closeStore), nil
}}

// runWorker runs a worker, and returns what ends it.
func runWorker(ctx context.Context, j *task, w *natsjs.Worker, closeStore func()) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		err := w.Run(ctx)
		if err != nil {
			j.settle(err) // nobody else would notice
		}
		ended <- err
	}()
	return func() error {
		defer closeStore()
		cancel()
		return <-ended
	}
}

// processor returns a Processor on the Redis store, with everything as it is by default.
func processor(j *task) (once *consumer.Processor, closeStore func(), err error) {
	store, err := redisstore.New(j.rdb, redisstore.Config{})
	if err != nil {
		return nil, nil, err
	}
	once, err = consumer.New(store, consumer.Config{Group: durable})
	return once, store.Close, err
}

func newSource(once *consumer.Processor, j *task) (*natsjs.Source, error) {
	return natsjs.NewSource(once, j.js, natsjs.SourceConfig{
		Config:   natsjs.Config{MaxInFlight: window},
		Consumer: func(context.Context, string) (jetstream.Consumer, error) { return j.consumer, nil },
	})
}

func newSubscriber(once *consumer.Processor, j *task) (message.Subscriber, error) {
	source, err := newSource(once, j)
	if err != nil {
		return nil, err
	}
	return oncewatermill.NewSubscriber(source, "charge-0") // as runRouter names its first handler
}
