package franz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/worker"
)

// A BatchHandler does the work for several records at once, such as an insert of many rows. It returns an error for
// each record, in their order, which has the effect of a Handler's error. Nil: all have succeeded.
// oncemill.RunsFromContext returns the runs of a batch. Over an inbox a batch has one record, because Kafka does not
// count deliveries.
//
// One error for several records, any other wrong number, or a panic says that the batch failed as a whole. Then its
// records are handled in batches of one, which costs no attempt. So are records whose last two runs or more ended with
// expired leases, one at a time. A batch has no order, and at most one record of each order key.
type BatchHandler func(ctx context.Context, records []*kgo.Record) []error

// BatchConfig configures a Worker with a BatchHandler. As many batches run at once as MaxInFlight has room for. Its
// Order is PerKey by default: under PerPartition a batch would have at most one record of each partition.
type BatchConfig struct {
	Config

	// MaxBatch is how many records a batch has at most. Zero: 64.
	MaxBatch int

	// MaxBatchBytes is how many bytes of values a batch has at most. A larger record is a batch of its own. Zero: 1
	// MiB.
	MaxBatchBytes int

	// Linger is how long a batch that is not full waits for more records. Zero: no wait, a batch is what is there.
	Linger time.Duration
}

func (c BatchConfig) withDefaults() BatchConfig {
	c.Order = cmp.Or(c.Order, PerKey)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, defaultMaxInFlight)
	c.MaxBatch = cmp.Or(c.MaxBatch, 64)
	c.MaxBatchBytes = cmp.Or(c.MaxBatchBytes, 1<<20)
	return c
}

func (c BatchConfig) validate() error {
	switch {
	case c.MaxBatch < 0:
		return fmt.Errorf("franz: BatchConfig.MaxBatch is %d, want at least 1, or zero", c.MaxBatch)
	case c.MaxBatchBytes < 0:
		return fmt.Errorf("franz: BatchConfig.MaxBatchBytes is %d, want at least 1, or zero", c.MaxBatchBytes)
	case c.Linger < 0:
		return fmt.Errorf("franz: BatchConfig.Linger is %v, want at least 0", c.Linger)
	}
	return nil
}

// NewBatchWorker is NewWorker for a handler of batches.
func NewBatchWorker(once *consumer.Processor, handle BatchHandler, config BatchConfig) (*Worker, error) {
	switch {
	case once == nil:
		return nil, errors.New("franz: NewBatchWorker needs a Processor")
	case handle == nil:
		return nil, errors.New("franz: NewBatchWorker needs a BatchHandler")
	}
	if problem := consumer.HandlerProblem(config.Handler); problem != "" {
		return nil, fmt.Errorf("franz: Config.Handler %s", problem)
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	w, err := newWorker(once, config.Config, func(h *handling) process {
		b := &worker.Batcher[offered]{
			Most: config.MaxBatch, Bytes: config.MaxBatchBytes, Linger: config.Linger, Pool: &h.pool,
			AtOnce: max(1, config.MaxInFlight/config.MaxBatch),
			Run:    func(batch []offered) { runBatch(once, batch, handle) },
		}
		h.hurry = b.Flush
		return func(_ context.Context, r *record, d consumer.Delivery) {
			d.Handler = config.Handler
			b.Add(offered{r, d}, len(r.Value))
			if closed(r.halted) { // the flush may have been before
				b.Flush()
			}
		}
	})
	if err == nil && !once.Batches(false) {
		w.config.Logger.Warn("franz: an inbox takes one record a transaction, because Kafka does not count deliveries: "+
			"each batch has one record; use NewWorker, or a guard without an inbox", "handler", config.Handler)
	}
	return w, err
}

// An offered is a record that waits for its batch.
type offered struct {
	*record
	delivery consumer.Delivery
}

// runBatch has a batch handled, without the records of partitions that are being given up.
func runBatch(once *consumer.Processor, batch []offered, handle BatchHandler) {
	var ready []*record
	var deliveries []consumer.Delivery
	var contexts []context.Context
	for _, o := range batch {
		if closed(o.halted) {
			o.decided(consumer.Decision{Action: consumer.RetryLater, Err: errStopping})
			continue
		}
		ready, deliveries = append(ready, o.record), append(deliveries, o.delivery)
		contexts = append(contexts, o.context())
	}
	if len(ready) == 0 {
		return
	}
	ctx := context.WithoutCancel(contexts[0])
	once.StartBatch(ctx, deliveries, contexts, func(ctx context.Context, which []int) []error {
		records := make([]*kgo.Record, len(which))
		for n, i := range which {
			if !ready[i].starts() {
				return slices.Repeat([]error{errStopping}, len(which)) // others begin where they are
			}
			records[n] = ready[i].Record
		}
		return handle(ctx, records)
	}, func(i int, d consumer.Decision) { ready[i].decided(d) })
}
