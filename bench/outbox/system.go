package main

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// A system is one way to bring messages from the database to the stream.
type system interface {
	// install makes its tables, empty.
	install(ctx context.Context) error

	// write commits one message in a transaction of its own.
	write(ctx context.Context, payload []byte) error

	// relay begins to publish, and returns what ends that cleanly.
	relay(ctx context.Context, conn *nats.Conn) (stop func() error, err error)

	// left is how many messages the system has still to publish, asked when nothing relays.
	left(ctx context.Context) (int, error)

	// uninstall removes the tables.
	uninstall(ctx context.Context) error
}

// writers is how many goroutines commit at once.
const writers = 16

// fill writes messages, each in a transaction of its own.
func fill(ctx context.Context, s system, messages int) error {
	var next atomic.Int64
	return side(writers, func() error {
		for {
			n := int(next.Add(1)) - 1
			if n >= messages {
				return nil
			}
			if err := s.write(ctx, payload(n)); err != nil {
				return err
			}
		}
	})
}

// side runs a function so many times side by side, and returns the first error.
func side(times int, f func() error) error {
	failed := make(chan error, times)
	var all sync.WaitGroup
	for range times {
		all.Go(func() {
			if err := f(); err != nil {
				failed <- err
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}
