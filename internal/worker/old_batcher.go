package worker

import (
	"runtime"
	"sync"
	"time"

	"github.com/oncemill/oncemill/internal/batch"
)

// A Batcher makes batches of what is there, and hands them to Run, several at once. Without a Linger there is no timer:
// what comes alone goes alone.
type Batcher[T any] struct {
	Most   int           // items in a batch
	Bytes  int           // in a batch of more than one item
	AtOnce int           // batches
	Linger time.Duration // how long a batch that is not full waits for more
	Pool   *batch.Pool
	Run    func([]T)

	mu      sync.Mutex
	queue   []sized[T]
	running int // goroutines
	timer   *time.Timer
}

type sized[T any] struct {
	item  T
	bytes int
	since time.Time
}

// Add adds an item of so many bytes. It waits for nothing.
func (b *Batcher[T]) Add(item T, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	added := sized[T]{item: item, bytes: bytes}
	if b.Linger > 0 {
		added.since = time.Now()
	}
	b.queue = append(b.queue, added)
	b.start()
}

// start starts a goroutine if there is a batch for it. The batcher is locked.
func (b *Batcher[T]) start() {
	if n := b.next(); n > 0 && b.running < b.AtOnce {
		b.running++
		b.Pool.Go(b.work)
	}
}

// next is how many items the next batch has; zero: it waits for more. The batcher is locked.
func (b *Batcher[T]) next() (n int) {
	bytes := 0
	for n < min(len(b.queue), b.Most) {
		if bytes += b.queue[n].bytes; bytes > b.Bytes && n > 0 {
			return n
		}
		n++
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

// Flush lets nothing that is here linger any longer.
func (b *Batcher[T]) Flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.queue {
		b.queue[i].since = time.Time{}
	}
	b.start()
}

func (b *Batcher[T]) lingered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.start()
}

// work runs batches until there is none.
func (b *Batcher[T]) work() {
	runtime.Gosched() // more of the same may be about to come
	for {
		batch := b.take()
		if batch == nil {
			return
		}
		b.Run(batch)
	}
}

func (b *Batcher[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.next()
	if n == 0 {
		b.running--
		return nil
	}
	batch := make([]T, n)
	for i := range batch {
		batch[i] = b.queue[i].item
	}
	rest := copy(b.queue, b.queue[n:])
	clear(b.queue[rest:])
	b.queue = b.queue[:rest]
	b.start()
	return batch
}
