package worker

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/batch"
)

// Batches bounds batches.
type Batches struct {
	Most   int           // messages in a batch; zero: 64
	Bytes  int           // of payload in a batch of more than one message; zero: 1 MiB
	Linger time.Duration // how long a batch that is not full waits for more
}

// WithDefaults fills in what is zero.
func (b Batches) WithDefaults() Batches {
	b.Most = cmp.Or(b.Most, 64)
	b.Bytes = cmp.Or(b.Bytes, 1<<20)
	return b
}

// Problem says which field of a transport's BatchConfig is wrong, or "".
func (b Batches) Problem() string {
	switch {
	case b.Most < 0:
		return fmt.Sprintf("MaxBatch is %d, want at least 1, or zero", b.Most)
	case b.Bytes < 0:
		return fmt.Sprintf("MaxBatchBytes is %d, want at least 1, or zero", b.Bytes)
	case b.Linger < 0:
		return fmt.Sprintf("Linger is %v, want at least 0", b.Linger)
	}
	return ""
}

// A batcher makes batches of what is there, and runs them, several at once. Without a Linger there is no timer: what
// comes alone goes alone.
type batcher struct {
	Batches
	atOnce int // batches
	pool   *batch.Pool
	run    func([]offered)

	mu      sync.Mutex
	queue   []offered
	working int // goroutines
	timer   *time.Timer
}

// An offered is a message that waits for its batch.
type offered struct {
	*Item
	delivery consumer.Delivery
	since    time.Time // since when it waits for others; zero: it does not
}

// add adds messages, and returns those that may not start any more. It waits for nothing.
func (b *batcher) add(messages []offered) (over []*Item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range messages {
		if closed(o.stopping) { // the flush may have been before
			over = append(over, o.Item)
			continue
		}
		if b.Linger > 0 && !closed(o.of.halted) {
			o.since = time.Now()
		}
		b.queue = append(b.queue, o)
	}
	b.start()
	return over
}

// start starts a goroutine if there is a batch for it. The batcher is locked.
func (b *batcher) start() {
	if n := b.next(); n > 0 && b.working < b.atOnce {
		b.working++
		b.pool.Go(b.work)
	}
}

// next is how many messages the next batch has; zero: it waits for more. The batcher is locked.
func (b *batcher) next() (n int) {
	for bytes := 0; n < min(len(b.queue), b.Most); n++ {
		if bytes += len(b.queue[n].delivery.Payload); bytes > b.Bytes && n > 0 {
			return n
		}
	}
	if n == 0 || n == b.Most || b.Linger == 0 {
		return n
	}
	left := b.Linger - time.Since(b.queue[0].since)
	if left <= 0 {
		return n
	}
	if b.timer == nil {
		b.timer = time.AfterFunc(left, b.lingered)
	} else {
		b.timer.Reset(left)
	}
	return 0
}

// flush lets nothing that is here linger any longer. What may not start any more it takes out and returns: the batches
// that run may go on for long.
func (b *batcher) flush() (over []*Item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = slices.DeleteFunc(b.queue, func(o offered) bool {
		if closed(o.stopping) {
			over = append(over, o.Item)
			return true
		}
		return false
	})
	for i := range b.queue {
		b.queue[i].since = time.Time{}
	}
	b.start()
	return over
}

func (b *batcher) lingered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.start()
}

// work runs batches until there is none.
func (b *batcher) work() {
	runtime.Gosched() // more of the same may be about to come
	for batch := b.take(); batch != nil; batch = b.take() {
		b.run(batch)
	}
}

func (b *batcher) take() (batch []offered) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.next()
	if n == 0 {
		b.working--
		return nil
	}
	batch = slices.Clone(b.queue[:n])
	b.queue = slices.Delete(b.queue, 0, n)
	b.start()
	return batch
}

// runBatch has a batch handled, without messages that may not start any more.
func (l *Loop) runBatch(batch []offered) {
	var deliveries []consumer.Delivery
	var contexts []context.Context
	batch = slices.DeleteFunc(batch, func(o offered) bool {
		if closed(o.stopping) {
			l.wait(o.Item, time.Time{})
			return true
		}
		deliveries, contexts = append(deliveries, o.delivery), append(contexts, o.of.ctx)
		return false
	})
	if len(batch) == 0 {
		return
	}
	l.work.Once.StartBatch(context.WithoutCancel(contexts[0]), deliveries, contexts,
		func(ctx context.Context, which []int) []error {
			for _, i := range which {
				if o := batch[i]; !o.started && closed(o.stopping) {
					return slices.Repeat([]error{errStopping}, len(which)) // others begin where they are
				}
			}
			messages := make([]Message, len(which))
			for n, i := range which {
				batch[i].started = true
				messages[n] = batch[i].Message
			}
			return l.work.Batch(ctx, messages)
		}, func(i int, d consumer.Decision) {
			o := batch[i]
			batch[i], deliveries[i] = offered{}, consumer.Delivery{} // a neighbour may go on for long
			o.decided(d)
		})
}
