package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// stopTime is how long requests that have begun may take once the service is told to stop.
const stopTime = 10 * time.Second

// serve takes orders and publishes their events until ctx ends, or until one of the two breaks. It stops in the order in
// which work flows: first the server, which finishes the requests that it has, then the relay, which finishes the batch
// that it has. What is committed but not published by then waits in the outbox for the next relay, of whatever process.
func serve(ctx context.Context, l net.Listener, h http.Handler, relay func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	srv := &http.Server{
		Handler:     h,
		ReadTimeout: 5 * time.Second, // less than stopTime: a client that never ends its body holds nothing up
		IdleTimeout: 2 * time.Minute, // longer than proxies keep connections, or they send requests into those that close; else it were ReadTimeout
	}
	served := make(chan error, 1)
	go func() {
		defer stop()
		served <- srv.Serve(l)
	}()
	relaying, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()
	relayed := make(chan error, 1)
	go func() {
		defer stop()
		relayed <- relay(relaying)
	}()

	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	err := srv.Shutdown(grace)
	if err != nil {
		err = errors.Join(err, srv.Close()) // requests that take too long are cut off, and their clients ask again
	}
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	stopRelay()
	return errors.Join(err, <-relayed)
}

// relay returns what publishes the events of an outbox until its context ends, and then drains.
func relay(store outbox.Store, pub producer.Publisher) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := outbox.NewRelay(store, pub, outbox.Config{
			Backoff: oncemill.Backoff{Min: 300 * time.Millisecond}, // the default is 1 s
			// What a relay held when it died is taken over after 10 s. The defaults suit brokers that fail over: 30 s, 1 min.
			PublishTimeout: 3 * time.Second, Lease: 10 * time.Second,
		})
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
}
