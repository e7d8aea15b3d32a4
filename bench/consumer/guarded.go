package main

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// window is how many messages are in flight.
const window = 256

// guardedRouter is a Router with Oncemill's middleware on Oncemill's subscriber.
var guardedRouter = way{dedup: true, run: func(ctx context.Context, j *job) (func() error, error) {
	once, closeStore, err := processor(j)
	if err != nil {
		return nil, err
	}
	source, err := newSource(j)
	if err != nil {
		return nil, err
	}
	closeRouter, err := runRouter(ctx, j, consumer.Subscriber(source), 1, once.Middleware)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer closeStore()
		return errors.Join(closeRouter(), once.Close(context.WithoutCancel(ctx)))
	}, nil
}}

// plainRouter is the same without the middleware.
var plainRouter = way{run: func(ctx context.Context, j *job) (func() error, error) {
	source, err := newSource(j)
	if err != nil {
		return nil, err
	}
	return runRouter(ctx, j, consumer.Subscriber(source), 1, nil)
}}

// guardedWorker has no Router. A message is done, here, when its handler is: nobody sees what follows, and that is awaited
// after the clock has stopped.
var guardedWorker = way{dedup: true, run: func(ctx context.Context, j *job) (func() error, error) {
	once, closeStore, err := processor(j)
	if err != nil {
		return nil, err
	}
	handle := func(context.Context, jetstream.Msg) error {
		j.handle()
		j.settle(nil)
		return nil
	}
	w, err := natsjs.NewWorker(once, j.js, j.consumer, handle, natsjs.Config{Window: window})
	if err != nil {
		return nil, err
	}
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
	}, nil
}}

// processor returns a Processor on the Redis store, with everything as it is by default.
func processor(j *job) (once *consumer.Processor, closeStore func(), err error) {
	store, err := redisstore.New(j.rdb, redisstore.Config{})
	if err != nil {
		return nil, nil, err
	}
	once, err = consumer.New(store, consumer.Config{Group: durable})
	return once, store.Close, err
}

func newSource(j *job) (*natsjs.Source, error) {
	return natsjs.NewSource(j.js, natsjs.SourceConfig{
		Config:   natsjs.Config{Window: window},
		Consumer: func(context.Context, string) (jetstream.Consumer, error) { return j.consumer, nil },
	})
}
