package natsjs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/worker"
)

// A BatchHandler does the work for several messages at once, such as an insert of many rows. It returns an error for
// each message, in their order, which has the effect of a Handler's error. Nil: all have succeeded.
// oncemill.RunsFromContext returns the runs of a batch. The worker settles the messages: see Handler.
//
// One error for several messages, any other wrong number, or a panic says that the batch failed as a whole. Then its
// messages are handled in batches of one, which costs no attempt. So are messages whose last two runs or more ended
// with expired leases, one at a time. A batch has no order, and at most one message of each order key.
type BatchHandler func(ctx context.Context, msgs []jetstream.Msg) []error

// BatchConfig configures a Worker with a BatchHandler. As many batches run at once as MaxInFlight has room for.
type BatchConfig struct {
	Config

	// MaxBatch is how many messages a batch has at most. Zero: 64.
	MaxBatch int

	// MaxBatchBytes is how many bytes of payload a batch has at most. A larger message is a batch of its own. Zero: 1
	// MiB.
	MaxBatchBytes int

	// Linger is how long a batch that is not full waits for more messages. Zero: no wait, a batch is what is there.
	Linger time.Duration
}

func (c BatchConfig) withDefaults() BatchConfig {
	if c.MaxBatch == 0 {
		c.MaxBatch = 64
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = 1 << 20
	}
	return c
}

func (c BatchConfig) validate() error {
	switch {
	case c.MaxBatch < 0:
		return fmt.Errorf("natsjs: BatchConfig.MaxBatch is %d, want at least 1, or zero", c.MaxBatch)
	case c.MaxBatchBytes < 0:
		return fmt.Errorf("natsjs: BatchConfig.MaxBatchBytes is %d, want at least 1, or zero", c.MaxBatchBytes)
	case c.Linger < 0:
		return fmt.Errorf("natsjs: BatchConfig.Linger is %v, want at least 0", c.Linger)
	}
	return nil
}

// NewBatchWorker is NewWorker for a handler of batches.
func NewBatchWorker(once *consumer.Processor, js jetstream.JetStream, cons jetstream.Consumer, handle BatchHandler,
	config BatchConfig) (*Worker, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	if handle == nil {
		return nil, errors.New("natsjs: NewBatchWorker needs a handler")
	}
	w, err := newWorker(once, js, cons, config.Config)
	if err != nil {
		return nil, err
	}
	if !once.Batches(true) {
		w.engine.config.Logger.Warn("natsjs: this inbox takes one message a transaction: each batch has one message; "+
			"use NewWorker, pgstore's inbox without Park, or a guard without an inbox", "handler", config.Handler)
	}
	w.process = func(work context.Context, f *inFlight) process {
		b := &worker.Batcher[offered]{
			Most: config.MaxBatch, Bytes: config.MaxBatchBytes, Linger: config.Linger, Pool: &f.pool,
			AtOnce: max(1, f.limits.maxInFlight/config.MaxBatch),
			Run:    func(batch []offered) { runBatch(work, once, f, batch, handle) },
		}
		f.hurry = b.Flush
		return func(_ context.Context, m *message, done func(consumer.Decision)) {
			b.Add(offered{m, done}, len(m.msg.Data))
			if f.isDraining() { // the flush may have been before
				b.Flush()
			}
		}
	}
	return w, nil
}

// An offered is a message that waits for its batch.
type offered struct {
	m    *message
	done func(consumer.Decision)
}

var errDraining = errors.New("natsjs: the worker is stopping")

// runBatch has a batch handled, unless the drain has begun.
func runBatch(
	ctx context.Context, once *consumer.Processor, f *inFlight, batch []offered, handle BatchHandler,
) {
	var ready []offered
	var deliveries []consumer.Delivery
	for _, o := range batch {
		if f.isDraining() && !o.m.last {
			o.done(consumer.Decision{Action: consumer.RetryLater, Err: errDraining})
			continue
		}
		d := o.m.delivery
		d.Handler = f.config.Handler
		ready, deliveries = append(ready, o), append(deliveries, d)
	}
	contexts := slices.Repeat([]context.Context{ctx}, len(ready))
	once.StartBatch(ctx, deliveries, contexts, func(ctx context.Context, which []int) []error {
		msgs := make([]jetstream.Msg, len(which))
		for n, i := range which {
			msgs[n] = ready[i].m
			_ = ready[i].m.result(nil) // what was said of it in a batch that panicked
		}
		if f.isDraining() && len(which) == 1 && !ready[which[0]].m.last { // others ran before it
			return []error{oncemill.Uncounted(oncemill.NoEffect(errDraining))}
		}
		errs := handle(ctx, msgs)
		for n, i := range which {
			err := ready[i].m.result(nil)
			if err != nil && errs == nil {
				errs = make([]error, len(which))
			}
			if n < len(errs) {
				errs[n] = cmp.Or(errs[n], err)
			}
		}
		return errs
	}, func(i int, d consumer.Decision) { ready[i].done(d) })
}
