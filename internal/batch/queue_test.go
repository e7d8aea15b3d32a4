package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type result struct {
	n   int
	err error
}

// A server answers batches of numbers with their doubles, when it is let.
type server struct {
	mu      sync.Mutex
	batches [][]int
	keep    func(ctx context.Context, batch int)
}

func (s *server) send(ctx context.Context, ops []int) []result {
	s.mu.Lock()
	s.batches = append(s.batches, slices.Clone(ops))
	n := len(s.batches)
	s.mu.Unlock()
	if s.keep != nil {
		s.keep(ctx, n)
	}
	results := make([]result, len(ops))
	for i, op := range ops {
		results[i] = result{2 * op, ctx.Err()}
	}
	return results
}

func (s *server) sizes() (sizes []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.batches {
		sizes = append(sizes, len(b))
	}
	return sizes
}

type told func(*result)

func (t told) Receive(r *result) { t(r) }

func queueOf(s *server) *Queue[int, result] {
	return &Queue[int, result]{Send: s.send, Timeout: 5 * time.Second,
		Failed: func(err error) result { return result{err: err} }}
}

func TestQueue_WhatComesMeanwhileTravelsTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := &server{keep: func(_ context.Context, n int) {
			if n == 1 {
				<-release
			}
		}}
		q := queueOf(s)
		var group sync.WaitGroup
		for i := range 301 {
			group.Go(func() {
				if r := q.Do(t.Context(), i); r.n != 2*i || r.err != nil {
					t.Errorf("%d was answered %+v", i, r)
				}
			})
			synctest.Wait() // the first one is under way, and the others wait in order
		}
		close(release)
		group.Wait()
		if got := s.sizes(); !slices.Equal(got, []int{1, 256, 44}) {
			t.Errorf("batches of %v, want 1, 256 and 44", got)
		}
		q.Wait()
	})
}

func TestQueue_WhatIsHandedOverIsReportedInItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		q := queueOf(s)
		got := make([]result, 1000)
		for i := range got {
			q.Go(i, told(func(r *result) { got[i] = *r }))
		}
		q.Wait()
		for i, r := range got {
			if r.n != 2*i {
				t.Fatalf("%d was answered %+v", i, r)
			}
		}
	})
}

func TestQueue_ALoneOperationGoesAtOnceInItsOwnGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		s := &server{keep: func(ctx context.Context, _ int) {
			if ctx.Value(key{}) != "mine" || ctx.Err() != nil {
				t.Errorf("its context has %v, and has ended with %v", ctx.Value(key{}), ctx.Err())
			}
		}}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "mine"))
		cancel() // who has gone is waited for
		if r := queueOf(s).Do(ctx, 1); r.n != 2 || r.err != nil {
			t.Errorf("answered %+v", r)
		}
	})
}

func TestQueue_ABatchThatHangsIsPassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := &server{keep: func(_ context.Context, n int) {
			if n == 1 {
				<-release
			}
		}}
		q := queueOf(s)
		var hung sync.WaitGroup
		hung.Go(func() { q.Do(t.Context(), 1) })
		synctest.Wait()
		began := time.Now()
		if r := q.Do(t.Context(), 21); r.n != 42 {
			t.Errorf("answered %+v", r)
		}
		if took := time.Since(began); took != stuckAfter {
			t.Errorf("passed a batch that hangs in %v, want %v", took, stuckAfter)
		}
		close(release)
		hung.Wait()
		q.Wait()
	})
}

func TestQueue_WhatHangsTakesOnePlaceMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		releases := []chan struct{}{make(chan struct{}), make(chan struct{})}
		s := &server{keep: func(_ context.Context, n int) {
			if n <= len(releases) {
				<-releases[n-1]
			}
		}}
		q := queueOf(s)
		q.Timeout = time.Hour
		var group sync.WaitGroup
		ask := func(op int) {
			group.Go(func() {
				if r := q.Do(t.Context(), op); r.n != 2*op {
					t.Errorf("%d was answered %+v", op, r)
				}
			})
			synctest.Wait()
			time.Sleep(10 * stuckAfter)
		}
		for op := range 5 {
			ask(op)
		}
		if got := s.sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Errorf("batches of %v under way while all hang, want two of 1", got)
		}
		close(releases[0]) // the first, which had been passed
		synctest.Wait()
		if got := s.sizes(); !slices.Equal(got, []int{1, 1, 3}) {
			t.Errorf("batches of %v, want those that waited to go when one has returned", got)
		}
		ask(5)
		close(releases[1])
		group.Wait()
		q.Wait()
	})
}

// A slow send holds up nobody.
func TestQueue_WhatIsLargeGoesBesideTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := &server{}
		q := queueOf(s)
		q.Alone = func(op int) bool { return op > 100 }
		s.keep = func(_ context.Context, n int) {
			if n <= 2 {
				<-release
			}
		}
		q.Go(101, told(func(*result) {}))
		synctest.Wait()
		var group sync.WaitGroup
		group.Go(func() { q.Do(t.Context(), 102) })
		synctest.Wait()
		if r := q.Do(t.Context(), 1); r.n != 2 {
			t.Errorf("a small one was answered %+v", r)
		}
		close(release)
		group.Wait()
		q.Wait()
		if got := s.sizes(); !slices.Equal(got, []int{1, 1, 1}) {
			t.Errorf("batches of %v, want each alone", got)
		}
	})
}

func TestQueue_ABatchIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{keep: func(ctx context.Context, _ int) { <-ctx.Done() }}
		began := time.Now()
		r := queueOf(s).Do(t.Context(), 1)
		if took := time.Since(began); took != 5*time.Second || !errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v, want a deadline exceeded after 5 s", took, r.err)
		}
	})
}

func TestQueue_PanicsAndMissingResultsAreErrorsOfTheirBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		q := &Queue[int, result]{Timeout: time.Second, Failed: func(err error) result { return result{err: err} },
			Send: func(_ context.Context, ops []int) []result {
				switch calls.Add(1) {
				case 1:
					panic("a hook")
				case 2:
					return nil
				}
				return make([]result, len(ops))
			}}
		for _, want := range []string{"the client panicked: a hook", "1 operations were answered with 0 results", "<nil>"} {
			if got, _, _ := strings.Cut(fmt.Sprint(q.Do(t.Context(), 1).err), "\n"); got != want {
				t.Errorf("error %q, want %q", got, want)
			}
		}
	})
}
