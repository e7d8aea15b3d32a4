// Package recorder runs a test that is expected to fail, and says how it failed: so suites of tests are tested.
package recorder

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// A Recorder has what a test reported.
type Recorder struct{ taker *taker }

// A taker takes the failures of a test without failing it.
type taker struct {
	testing.TB // for all that is not about failing

	mu     sync.Mutex
	failed bool
	lines  []string
}

// Record runs a test to its end, or to its first fatal failure, and returns what it reported.
func Record(tb testing.TB, test func(testing.TB)) Recorder {
	r := Recorder{&taker{TB: tb}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(r.taker)
	}()
	<-done
	return r
}

// Lines are what the test has logged.
func (r Recorder) Lines() []string {
	r.taker.mu.Lock()
	defer r.taker.mu.Unlock()
	return slices.Clone(r.taker.lines)
}

// Failed reports whether it has failed.
func (r Recorder) Failed() bool { return r.taker.Failed() }

// WantRejected wants the case of a suite to have failed, and to have said last why it exists.
func (r Recorder) WantRejected(name, why string) {
	t := r.taker.TB
	t.Helper()
	if !r.Failed() {
		t.Fatalf("%s accepts what breaks the rule", name)
	}
	lines := r.Lines()
	if last, want := lines[len(lines)-1], "why "+name+" matters: "+why; last != want {
		t.Errorf("the last line is %q, want why the case exists: %q", last, want)
	}
}

func (r *taker) add(line string, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	r.failed = r.failed || failed
}

func (r *taker) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *taker) Fail()                     { r.add("failed", true) }
func (r *taker) FailNow()                  { r.Fail(); runtime.Goexit() }
func (r *taker) Log(args ...any)           { r.add(fmt.Sprint(args...), false) }
func (r *taker) Logf(f string, a ...any)   { r.add(fmt.Sprintf(f, a...), false) }
func (r *taker) Error(args ...any)         { r.add(fmt.Sprint(args...), true) }
func (r *taker) Errorf(f string, a ...any) { r.add(fmt.Sprintf(f, a...), true) }
func (r *taker) Fatal(args ...any)         { r.Error(args...); runtime.Goexit() }
func (r *taker) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
