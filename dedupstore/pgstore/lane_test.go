package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
)

// A flow is a lane whose flushes a test lets through.
type flow struct {
	lane[int, string]
	sizes chan int   // of flushes that began
	let   chan error // how they end
}

func newFlow() *flow {
	f := &flow{sizes: make(chan int, 100), let: make(chan error)}
	f.large = func(q int) bool { return q == 1000 }
	f.exec = func(ctx context.Context, questions []int) ([]string, error) {
		f.sizes <- len(questions)
		var err error
		select {
		case err = <-f.let:
		case <-ctx.Done():
			err = ctx.Err()
		}
		answers := make([]string, len(questions))
		for i, q := range questions {
			answers[i] = fmt.Sprint("answer ", q)
		}
		return answers, err
	}
	return f
}

func TestLane_WhoWaitsGoesTogether(t *testing.T) {
	t.Parallel()
	f := newFlow()
	const n = 1 + maxBatch + 10
	var group sync.WaitGroup
	ask := func(q int) {
		group.Go(func() {
			if a, err := f.do(t.Context(), q); err != nil || a != fmt.Sprint("answer ", q) {
				t.Errorf("%d got %q, %v", q, a, err)
			}
		})
	}
	ask(0)
	if size := <-f.sizes; size != 1 {
		t.Errorf("a lone operation went with %d", size)
	}
	for q := 1; q < n; q++ {
		ask(q)
	}
	until(t, "the queue", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.queue) == n-1 })
	for _, want := range []int{maxBatch, 10} {
		f.let <- nil
		if size := <-f.sizes; size != want {
			t.Errorf("a flush had %d operations, want %d", size, want)
		}
	}
	f.let <- nil
	group.Wait()
}

func TestLane_ARefusalIsOfOneOperation(t *testing.T) {
	t.Parallel()
	f := newFlow()
	var group sync.WaitGroup
	errs := make([]error, 4)
	group.Go(func() { _, errs[0] = f.do(t.Context(), 0) })
	<-f.sizes
	for q := 1; q < 4; q++ {
		group.Go(func() { _, errs[q] = f.do(t.Context(), q) })
	}
	until(t, "the queue", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.queue) == 3 })
	refusal := &pgconn.PgError{Code: "22003"}
	for _, end := range []error{nil, refusal, nil, refusal, nil} { // alone, together, and each by itself
		f.let <- end
	}
	group.Wait()
	refused := 0
	for _, err := range errs {
		if errors.Is(err, refusal) {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused != 1 {
		t.Errorf("%d operations were refused, want 1", refused)
	}
}

func TestLane_WhoGoesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFlow()
	var group sync.WaitGroup
	group.Go(func() { f.do(t.Context(), 0) })
	<-f.sizes
	ctx, cancel := context.WithCancel(t.Context())
	group.Go(func() {
		if _, err := f.do(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("who has gone got %v", err)
		}
	})
	until(t, "the queue", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.queue) == 1 })
	cancel()
	until(t, "its going", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.queue[0].gone.Load() })
	group.Go(func() { f.do(t.Context(), 2) })
	until(t, "the queue", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.queue) == 2 })
	f.let <- nil
	if size := <-f.sizes; size != 1 {
		t.Errorf("the next flush had %d operations, want 1", size)
	}
	f.let <- nil
	group.Wait()
}

func TestLane_AStuckFlushIsPassed(t *testing.T) {
	t.Parallel()
	f := newFlow()
	var group sync.WaitGroup
	group.Go(func() { f.do(t.Context(), 0) })
	<-f.sizes
	group.Go(func() { f.do(t.Context(), 1000) }) // large: it has no part in this
	<-f.sizes
	group.Go(func() { f.do(t.Context(), 1) })
	select {
	case <-f.sizes:
	case <-time.After(20 * stuckAfter):
		t.Error("the queue was held up by a flush that does not return")
	}
	for range 3 {
		f.let <- nil
	}
	group.Wait()
}

func TestLane_PanicsOfHooksAreErrors(t *testing.T) {
	t.Parallel()
	f := newFlow()
	exec := f.exec
	var group sync.WaitGroup
	group.Go(func() { f.do(t.Context(), 0) })
	<-f.sizes
	var panicked error
	group.Go(func() { _, panicked = f.do(t.Context(), 1) })
	until(t, "the queue", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.queue) == 1 })
	f.mu.Lock()
	f.exec = func(context.Context, []int) ([]string, error) { panic("on purpose") }
	f.mu.Unlock()
	f.let <- nil
	group.Wait()
	if panicked == nil {
		t.Error("the caller was not told")
	}
	f.exec = exec
}

// TestStore_ConcurrentOperationsShareStatements counts what the server is asked.
func TestStore_ConcurrentOperationsShareStatements(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	newStore(t, direct, Config{})
	pool, p := behind(t, direct, func(c *pgxpool.Config) { c.MaxConns = 4 })
	s := unmigrated(t, pool, Config{})
	claim(t, s, request("first"), dedupstore.AcquiredRun)
	var requests atomic.Int64
	p.inject(func(int, string) fault { requests.Add(1); return faithful })
	const messages = 300
	var group sync.WaitGroup
	for i := range messages {
		group.Go(func() {
			c := runOf(t, s, fmt.Sprint(i))
			if err := s.Settle(t.Context(), c, success); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := requests.Load(); n > messages {
		t.Errorf("%d claims and settlements took %d requests: they do not travel together", 2*messages, n)
	}
}
