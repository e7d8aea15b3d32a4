package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
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

// Outputs may have a megabyte each: hundreds of them in one statement would be written in vain when its time is over.
func TestLane_WhatIsLargeGoesBesideTheOthers(t *testing.T) {
	t.Parallel()
	f := newFlow()
	f.large = func(q int) bool { return q > 100 }
	var group sync.WaitGroup
	for q := range 3 {
		group.Go(func() { _, _ = f.do(t.Context(), 100*q+q) }) // 0, 101, 202
		select {
		case size := <-f.sizes:
			if size != 1 {
				t.Errorf("%d went with %d others", 100*q+q, size-1)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%d waits for the others", 100*q+q)
		}
	}
	close(f.let) // also for those that have waited
	group.Wait()
}

// A settlement with outputs of a megabyte is large, one without is not.
func TestSettling_Large(t *testing.T) {
	t.Parallel()
	c := ask(t, newStore(t, newPool(t), Config{}), request("1")).Claim
	for size, want := range map[int]bool{1 << 10: false, 1 << 20: true} {
		s, err := newSettling(idOf(c.Key.String()), c, dedupstore.Finish{Retention: long, Outcome: dedupstore.Outcome{
			Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{{ID: "1", Topic: "t", Payload: make([]byte, size)}},
		}})
		if err != nil || s.large() != want {
			t.Errorf("with %d bytes: large %v, %v, want %v", size, s.large(), err, want)
		}
	}
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

func TestLane_AFlushThatDoesNotReturnIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFlow()
		var group sync.WaitGroup
		group.Go(func() {
			if _, err := f.do(t.Context(), 0); !errors.Is(err, context.DeadlineExceeded) || isCallers(err) {
				t.Errorf("the flush returned %v, want the end of its time, which is not the caller's", err)
			}
		})
		<-f.sizes
		group.Go(func() {
			if a, err := f.do(t.Context(), 1); err != nil || a != "answer 1" {
				t.Errorf("the next got %q, %v", a, err)
			}
		})
		<-f.sizes
		f.let <- nil
		group.Wait()
	})
}

// isCallers reports whether an error passes for the end of the caller's own context.
func isCallers(err error) bool {
	return err == context.Canceled || err == context.DeadlineExceeded //nolint:errorlint // as Store.failed does
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
			if err := dedupstore.SettleOne(t.Context(), s, c, success); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := requests.Load(); n > messages {
		t.Errorf("%d claims and settlements took %d requests: they do not travel together", 2*messages, n)
	}
}

// TestClaimMany_EachGetsWhatItAskedFor has a batch that is more than one statement carries, of several leases and
// windows, and in which some keys are asked for twice.
func TestClaimMany_EachGetsWhatItAskedFor(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			s := newStore(t, pool, Config{})
			var requests []dedupstore.Request
			for i := range 100 {
				r := request(fmt.Sprint(i % 90)) // the last ten are twins
				r.Lease += time.Duration(i%90/40) * time.Minute
				r.Retention += time.Duration(i%90/60) * time.Hour
				r.Trace, r.Fingerprint = fmt.Sprint("trace-", i%90),
					dedupstore.Fingerprint{Scheme: "v1", Sum: fmt.Sprint(i % 90)}
				requests = append(requests, r)
			}
			granted := map[string]dedupstore.Claim{}
			for i, result := range s.Claim(t.Context(), requests) {
				if result.Err != nil {
					t.Fatal(result.Err)
				}
				c := result.Answer.Claim
				_, twin := granted[requests[i].Key.ID]
				switch result.Answer.Status {
				case dedupstore.AcquiredRun:
					if twin || c.Owner != requests[i].Owner {
						t.Errorf("claim %d was granted to %q; its key was granted before: %v", i, c.Owner, twin)
					}
					granted[c.Key.ID] = c
				case dedupstore.Busy:
					if i%90 >= 10 {
						t.Errorf("claim %d is busy, and has no twin", i)
					}
				default:
					t.Errorf("claim %d was answered %q", i, result.Answer.Status)
				}
			}
			if len(granted) != 90 {
				t.Errorf("%d keys were granted, want 90", len(granted))
			}
			for i := range 90 {
				r, c := requests[i], granted[requests[i].Key.ID]
				var lease, life, clean time.Duration
				var owner, trace, print string
				var fence int64
				if err := pool.QueryRow(t.Context(), `
SELECT lease_until - first_at, expires_at - first_at, clean_at - first_at, owner, trace, print, fence
FROM oncemill_dedup WHERE key = $1`,
					r.Key.String()).Scan(&lease, &life, &clean, &owner, &trace, &print, &fence); err != nil {
					t.Fatal(err)
				}
				wantLife := r.Lease + r.Retention
				for _, d := range [][2]time.Duration{{lease, r.Lease}, {life, wantLife},
					{clean, wantLife + wantLife/16}} {
					if off := d[0] - d[1]; off.Abs() > 100*time.Millisecond {
						t.Errorf("record %d ends %v, %v and %v after its claim, want %v, %v and a sixteenth more", i,
							lease, life, clean, r.Lease, wantLife)
						break
					}
				}
				if owner != c.Owner || fence != int64(c.Fence) || trace != r.Trace || print != "v1:"+r.Fingerprint.Sum {
					t.Errorf("record %d is of owner %q, fence %d, trace %q, print %q", i, owner, fence, trace, print)
				}
			}
		})
	}
}
