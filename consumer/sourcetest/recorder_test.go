package sourcetest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// A recorder takes the failures of a test without failing it.
type recorder struct {
	testing.TB // for all that is not about failing

	mu     sync.Mutex
	failed bool
	lines  []string
}

// record runs a test to its end, or to its first fatal failure, and returns what it reported.
func record(tb testing.TB, test func(testing.TB)) *recorder {
	r := &recorder{TB: tb}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(r)
	}()
	<-done
	return r
}

func (r *recorder) add(line string, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	r.failed = r.failed || failed
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) FailNow()                  { r.add("failed", true); runtime.Goexit() }
func (r *recorder) Logf(f string, a ...any)   { r.add(fmt.Sprintf(f, a...), false) }
func (r *recorder) Error(args ...any)         { r.add(fmt.Sprint(args...), true) }
func (r *recorder) Errorf(f string, a ...any) { r.add(fmt.Sprintf(f, a...), true) }
func (r *recorder) Fatal(args ...any)         { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
