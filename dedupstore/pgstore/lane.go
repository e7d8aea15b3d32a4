package pgstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxBatch is how many operations share a statement at most.
	maxBatch = 256

	// maxShared is how large an operation may be to share one, in bytes: a larger one would hold the others up.
	maxShared = 64 << 10

	// flushTimeout bounds a shared statement. Callers do not wait for it: each has a context of its own.
	flushTimeout = 10 * time.Second

	// stuckAfter is after what time a flush is passed by the next: far longer than a commit, far shorter than a lease.
	stuckAfter = 500 * time.Millisecond
)

// A lane carries operations to the server, in one flush at a time. Who comes while none is under way sends alone, in
// its own goroutine and context; the others wait in a queue, which goes in one statement when the flush has returned. A
// flush that does not return is left alone after a while.
type lane[Q, A any] struct {
	exec  func(ctx context.Context, questions []Q) ([]A, error)
	large func(Q) bool

	mu     sync.Mutex
	queue  []*passenger[Q, A]
	flight int // the number of the flush that is under way; 0: none is
	flown  int // how many there were
	timer  *time.Timer
	began  time.Time
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
	if l.large(q) {
		return l.alone(ctx, q)
	}
	l.mu.Lock()
	if l.flight == 0 {
		flight := l.begin()
		l.mu.Unlock()
		defer l.end(flight) // also when a hook of the pool panics
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

func (l *lane[Q, A]) alone(ctx context.Context, q Q) (a A, err error) {
	answers, err := l.exec(ctx, []Q{q})
	if err == nil {
		return answers[0], nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return a, err
}

// begin begins a flush. The lane is locked.
func (l *lane[Q, A]) begin() (flight int) {
	l.flown++
	l.flight, l.began = l.flown, time.Now()
	if l.timer == nil {
		l.timer = time.AfterFunc(stuckAfter, l.pass)
	} else {
		l.timer.Reset(stuckAfter)
	}
	return l.flight
}

// end ends a flush; what has queued up meanwhile is sent by a goroutine of its own.
func (l *lane[Q, A]) end(flight int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over(flight) {
		l.start()
	}
}

// over notes that a flush has returned, and tells whether it was still the lane's. The lane is locked.
func (l *lane[Q, A]) over(flight int) bool {
	if l.flight != flight {
		return false
	}
	l.flight = 0
	l.timer.Stop()
	return true
}

// pass lets the queue pass a flush that does not return.
func (l *lane[Q, A]) pass() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flight != 0 && time.Since(l.began) < stuckAfter/2 {
		return // the timer was meant for another
	}
	l.flight = 0
	l.start()
}

// start starts to flush the queue, if there is something in it. The lane is locked, and no flush is under way. Those
// who wait in the queue wait for the goroutine.
func (l *lane[Q, A]) start() {
	if len(l.queue) > 0 {
		flight := l.begin()
		go l.flush(flight)
	}
}

// flush sends the queue until it is empty, or another flush has passed.
func (l *lane[Q, A]) flush(flight int) {
	for {
		runtime.Gosched() // who can go on until it is in the queue comes along
		l.mu.Lock()
		if l.flight != flight {
			l.mu.Unlock()
			return
		}
		batch := l.take()
		if len(batch) == 0 {
			l.over(flight)
			l.mu.Unlock()
			return
		}
		l.began = time.Now()
		l.timer.Reset(stuckAfter)
		l.mu.Unlock()
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
	rest := copy(l.queue, l.queue[taken:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
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
