package pgstore

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxBatch is how many operations share a statement at most.
	maxBatch = 256

	// maxShared is how many bytes an operation may have to share one: larger ones would together take longer than
	// their callers wait, again and again.
	maxShared = 64 << 10

	// flushTimeout bounds a flush, for which others wait. Callers of a shared one have contexts of their own.
	flushTimeout = 10 * time.Second
)

// A lane carries operations to the server, in one flush at a time. An operation that comes while none is under way goes
// alone, in its own goroutine and context; the others wait in a queue, which goes in one statement when the flush has
// returned.
type lane[Q, A any] struct {
	exec  func(ctx context.Context, questions []Q) ([]A, error)
	large func(Q) bool // it goes beside the others; nil: none does

	mu       sync.Mutex
	queue    []*passenger[Q, A]
	flushing bool
}

// A passenger is an operation whose caller waits for a flush.
type passenger[Q, A any] struct {
	question Q
	answer   A
	err      error
	gone     atomic.Bool // the caller does not wait any more
	done     chan struct{}
}

// do runs an operation and returns when it has an answer, or when the context has ended.
func (l *lane[Q, A]) do(ctx context.Context, q Q) (a A, err error) {
	if err := ctx.Err(); err != nil {
		return a, err
	}
	if l.large != nil && l.large(q) {
		return l.alone(ctx, q)
	}
	l.mu.Lock()
	if !l.flushing {
		l.flushing = true
		l.mu.Unlock()
		defer l.end() // also when a hook of the pool panics
		return l.alone(ctx, q)
	}
	p := &passenger[Q, A]{question: q, done: make(chan struct{})}
	l.queue = append(l.queue, p)
	l.mu.Unlock()
	select {
	case <-p.done:
		return p.answer, p.err
	case <-ctx.Done():
		p.gone.Store(true)
		return a, ctx.Err()
	}
}

// alone runs an operation in a statement of its own.
func (l *lane[Q, A]) alone(ctx context.Context, q Q) (a A, err error) {
	bounded, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	answers, err := l.exec(bounded, []Q{q})
	switch {
	case err == nil:
		return answers[0], nil
	case ctx.Err() != nil:
		return a, ctx.Err()
	case bounded.Err() != nil:
		return a, fmt.Errorf("no answer within %v: %w", flushTimeout, err)
	}
	return a, err
}

// end ends a flush; what has queued up meanwhile is sent by a goroutine of its own. Those in the queue wait for it.
func (l *lane[Q, A]) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flushing = len(l.queue) > 0; l.flushing {
		go l.flush()
	}
}

// flush sends the queue until it is empty.
func (l *lane[Q, A]) flush() {
	for {
		runtime.Gosched() // who can go on until it is in the queue comes along
		l.mu.Lock()
		batch := l.take()
		l.flushing = len(batch) > 0
		l.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		l.share(batch)
	}
}

// take moves operations out of the queue, without those whose callers have gone.
func (l *lane[Q, A]) take() (batch []*passenger[Q, A]) {
	taken := 0
	for _, p := range l.queue {
		if len(batch) == maxBatch {
			break
		}
		taken++
		if !p.gone.Load() {
			batch = append(batch, p)
		}
	}
	l.queue = slices.Delete(l.queue, 0, taken)
	return batch
}

// share runs operations in one statement.
func (l *lane[Q, A]) share(batch []*passenger[Q, A]) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	questions := make([]Q, len(batch))
	for i, p := range batch {
		questions[i] = p.question
	}
	answers, errs := make([]A, len(batch)), make([]error, len(batch))
	defer func() {
		if v := recover(); v != nil { // a hook of the pool, of which no caller could be told otherwise
			for i := range errs {
				errs[i] = fmt.Errorf("the client panicked: %v", v)
			}
		}
		for i, p := range batch {
			p.answer, p.err = answers[i], errs[i]
			close(p.done)
		}
	}()
	answers, errs = l.each(ctx, questions)
}

// each runs operations in one statement, or if PostgreSQL refuses that, each in one of its own: what one of them is
// refused for says nothing of the others.
func (l *lane[Q, A]) each(ctx context.Context, questions []Q) ([]A, []error) {
	errs := make([]error, len(questions))
	answers, err := l.exec(ctx, questions)
	if err == nil {
		return answers, errs
	}
	answers = make([]A, len(questions))
	for i := range questions {
		if errs[i] = err; codeOf(err) == "" || len(questions) == 1 {
			continue
		}
		var one []A
		if one, errs[i] = l.exec(ctx, questions[i:i+1]); errs[i] == nil {
			answers[i] = one[0]
		}
	}
	return answers, errs
}
