package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

// stopTime is how long requests that have begun may take once the service is told to stop.
const stopTime = 10 * time.Second

// serve takes requests and relays until ctx ends, or until one of the two breaks: first the server stops, then the relay.
// What is committed but not published by then waits for the next start.
func serve(ctx context.Context, l net.Listener, handler http.Handler, relay func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// Senders that are slow, or pretend to be, hold a connection no longer than this.
	srv := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
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
		err = errors.Join(err, srv.Close()) // requests that take too long are cut off, and their senders come again
	}
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	stopRelay()
	return errors.Join(err, <-relayed)
}

// relay returns what publishes the messages of the outbox until its context ends.
func (h *hooks) relay(sent *published) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := outbox.NewRelay(h.box, sent, outbox.Config{})
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
}
