package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// maxBatch is how many operations share a transaction at most, so that others get the write lock in between.
const maxBatch = 256

// An operation changes one record in the transaction that it shares with others.
type operation struct {
	key   string
	apply func(rec *record, now int64) (changed bool, err error) // may be called again, after a transaction that failed

	answer dedupstore.Answer // to a claim

	state atomic.Int32
	done  chan struct{}
	err   error
}

// The states of an operation.
const (
	waiting   int32 = iota
	taken           // it is being done
	abandoned       // it must not be done
)

func newOperation(key string, apply func(rec *record, now int64) (bool, error)) *operation {
	return &operation{key: key, apply: apply, done: make(chan struct{})}
}

// await waits until the operation is done. If ctx ends before, it is not done, unless it has been begun: then it may
// be.
func (op *operation) await(ctx context.Context) error {
	select {
	case <-op.done:
		return op.err
	case <-ctx.Done():
		op.abandon()
		return fmt.Errorf("sqlitestore: waited for the database's write lock, or its disk: %w", context.Cause(ctx))
	}
}

// abandon reports whether the operation will not be done.
func (op *operation) abandon() bool { return op.state.CompareAndSwap(waiting, abandoned) }

// A queue holds operations until the transaction that they share. Operations that come while one is under way make up
// the next; there is no timer.
type queue struct {
	store *Store

	mu       sync.Mutex
	waiting  []*operation
	flushing bool
}

// add queues operations. The goroutine that it starts, if there is none, ends with the last operation.
func (q *queue) add(ops ...*operation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, ops...)
	if !q.flushing && len(q.waiting) > 0 {
		q.flushing = true
		go q.flush()
	}
}

// flush does what is queued until there is nothing left.
func (q *queue) flush() {
	ctx := context.Background() // callers have contexts of their own
	for q.wanted() {
		if err := q.store.gate.enter(ctx, true); err != nil {
			return // never: its context does not end
		}
		q.turn(ctx)
		q.store.gate.leave()
		runtime.Gosched() // those who were answered have the next operations
	}
}

// wanted drops operations that nobody wants any more, and reports whether there are others. If there are none, the
// flush is over.
func (q *queue) wanted() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(op *operation) bool { return op.state.Load() == abandoned })
	q.flushing = len(q.waiting) > 0
	return q.flushing
}

// turn does one batch.
func (q *queue) turn(ctx context.Context) {
	t, err := q.store.begin(ctx, ctx, q.anybody)
	if errors.Is(err, errGivenUp) {
		return // flush drops those who have gone
	}
	batch := q.take()
	if err != nil {
		finish(batch, fmt.Errorf("sqlitestore: begin: %w", err))
		return
	}
	if len(batch) == 0 {
		t.abort()
		return
	}
	err = q.store.do(ctx, t, batch)
	if err == nil || len(batch) == 1 {
		finish(batch, err)
		return
	}
	for _, op := range batch { // one that cannot be done must not harm the others
		op.err = nil // of a transaction that is not there
		finish([]*operation{op}, q.alone(ctx, op))
	}
}

// anybody reports whether somebody still waits.
func (q *queue) anybody() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.waiting, func(op *operation) bool { return op.state.Load() == waiting })
}

// take takes the next operations from the queue.
func (q *queue) take() (batch []*operation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, op := range q.waiting {
		if len(batch) == maxBatch {
			break
		}
		n++
		if op.state.CompareAndSwap(waiting, taken) {
			batch = append(batch, op)
		}
	}
	q.waiting = slices.Delete(q.waiting, 0, n)
	return batch
}

func finish(batch []*operation, err error) {
	for _, op := range batch {
		if op.err == nil {
			op.err = err
		}
		close(op.done)
	}
}

// alonePatience bounds how long one operation of a batch that failed may wait for the write lock again.
const alonePatience = 10 * time.Second

// alone does one operation in a transaction of its own.
func (q *queue) alone(ctx context.Context, op *operation) error {
	ctx, cancel := context.WithTimeout(ctx, alonePatience)
	defer cancel()
	t, err := q.store.begin(ctx, ctx, always)
	if err != nil {
		return fmt.Errorf("sqlitestore: begin: %w", err)
	}
	return q.store.do(ctx, t, []*operation{op})
}

// do does operations in one transaction and commits. Its error is that of the database; an operation that is refused by
// its record has the error itself.
func (s *Store) do(ctx context.Context, t *lockedTx, batch []*operation) error {
	stmt := t.StmtContext(ctx, s.statements.load)
	for _, op := range batch {
		if err := s.change(ctx, t.Tx, stmt, op); err != nil {
			t.abort()
			return fmt.Errorf("sqlitestore: write record: %w", err)
		}
	}
	if err := t.commit(); err != nil {
		return fmt.Errorf("sqlitestore: commit: %w", err)
	}
	return nil
}

func (s *Store) change(ctx context.Context, tx *sql.Tx, stmt querier, op *operation) error {
	op.err = nil
	now := clock()
	rec, err := load(ctx, stmt, op.key, now)
	if err != nil {
		if isRecordError(err) {
			op.err = err
			return nil
		}
		return err
	}
	changed, err := op.apply(rec, now)
	if err != nil {
		op.err = err
		return nil //nolint:nilerr // an answer to one of the batch
	}
	if !changed {
		return nil
	}
	return s.save(ctx, tx, rec)
}
