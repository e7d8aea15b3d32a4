package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/oncemill/oncemill/examples/internal/observe"
)

// closeTime is how long the end may take.
const closeTime = 10 * time.Second

// run serves, or plays the load and reports whether the books balance. What it says to people goes to out.
func (p program) run(ctx context.Context, o options, stdout, out io.Writer) (balanced bool, err error) {
	start := time.Now()
	dir, err := os.MkdirTemp("", "oncemill-outbox-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	stop, err := observe.Global(ctx, "outbox")
	if err != nil {
		return false, err
	}
	defer stop(ctx)
	var orders []planned
	if o.listen == "" {
		orders = plan(o)
	}
	r, err := openRig(ctx, o, dir, newWarehouse(orders).reserve)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		err = errors.Join(err, r.close(ctx))
	}()
	if p.tamper != nil {
		p.tamper(r)
	}
	say(out, "%s\n", o.describe())
	if o.listen != "" {
		return true, listen(ctx, o, r, out)
	}
	b, err := play(ctx, o, r, orders, out)
	if err != nil {
		return false, err
	}
	if err := b.print(stdout, o.out); err != nil {
		return false, err
	}
	say(out, "seed %d, %.1f s\n", o.seed, time.Since(start).Seconds())
	return b.Balance(), nil
}

// describe says what the run stands on.
func (o options) describe() string {
	switch {
	case o.embedded && o.broker == "kafka":
		return "-embedded: orders are kept in SQLITE INSTEAD OF POSTGRESQL, and kfake plays Kafka"
	case o.embedded:
		return "-embedded: orders are kept in SQLITE INSTEAD OF POSTGRESQL, and NATS runs in this process"
	case o.broker == "kafka":
		return "orders are kept in PostgreSQL, events go to Kafka"
	}
	return "orders are kept in PostgreSQL, events go to NATS JetStream"
}

// listen takes orders until ctx ends.
func listen(ctx context.Context, o options, r *rig, out io.Writer) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	say(out, "taking orders until interrupted; events go to %s\n", o.topic())
	say(out, "  curl -d '{\"id\":\"4711\",\"cents\":1200}' http://%s/orders\n", l.Addr())
	if err := serve(ctx, l, handler(r.place), relay(r.database.outbox(), r.publisher)); err != nil {
		return err
	}
	stats, err := r.database.outbox().Stats(context.WithoutCancel(ctx))
	say(out, "drained; %d events wait in the outbox, %d are dead\n", stats.Pending, stats.Dead)
	return err
}

// shared lets several goroutines write.
type shared struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}
