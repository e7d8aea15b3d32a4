// Package parts starts and stops the parts of a service in one order. Copy it.
package parts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"
)

// Parts run side by side. They stop in the reverse order of their start, each after the one before has ended. One
// goroutine may use them.
type Parts struct {
	done  <-chan struct{}
	end   context.CancelFunc
	stops []func() error
}

// New returns no parts yet. Call Stop at the end.
func New(ctx context.Context) *Parts {
	ctx, end := context.WithCancel(ctx)
	return &Parts{done: ctx.Done(), end: end}
}

// Done is closed when the context of New ends, or a part that nobody has stopped.
func (p *Parts) Done() <-chan struct{} { return p.done }

// Start starts a part. It runs until Stop ends its context, and may then finish what it has.
func (p *Parts) Start(name string, run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := run(ctx)
		switch {
		case ctx.Err() == nil:
			err = errors.Join(fmt.Errorf("%s has ended", name), err)
			p.end()
		case errors.Is(err, context.Canceled): // it only says why it has ended
			err = nil
		}
		ended <- err
	}()
	p.stops = append(p.stops, func() error {
		stop()
		err := <-ended
		slog.Info("stopped", "part", name)
		return err
	})
}

// Stop stops all parts, the last one first. It returns their errors.
func (p *Parts) Stop() (err error) {
	p.end()
	for _, stop := range slices.Backward(p.stops) {
		err = errors.Join(err, stop())
	}
	return err
}

// StopTime is how long requests that have begun may take once a service is told to stop.
const StopTime = 10 * time.Second

// HTTP is a part that answers requests. When it is stopped, it finishes those that it has.
func HTTP(l net.Listener, h http.Handler) func(context.Context) error {
	srv := &http.Server{
		Handler:     h,
		ReadTimeout: 5 * time.Second, // less than StopTime: a client that never ends its body holds nothing up
		IdleTimeout: 2 * time.Minute, // longer than proxies keep connections, or they use those that close
	}
	return func(ctx context.Context) error {
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(l) }()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
		}
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), StopTime)
		defer cancel()
		err := srv.Shutdown(grace)
		if err != nil {
			err = errors.Join(err, srv.Close()) // requests that take too long are cut off, and their clients ask again
		}
		<-ended //nolint:errcheck // http.ErrServerClosed
		return err
	}
}
