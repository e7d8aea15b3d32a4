package contexts_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/contexts"
)

// TestMain fails if tests leave goroutines behind.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			os.Exit(1)
		}
	}
	os.Exit(code)
}

var (
	errOwn    = errors.New("its own end")
	errParent = errors.New("the parent's end")
)

type key struct{}

// Whatever is done to a context, and whenever somebody looks first, it says what context.WithCancelCause would.
func TestLazy_IsLikeOneOfWithCancelCause(t *testing.T) {
	type end func(own, parent context.CancelCauseFunc)
	for name, ends := range map[string]end{
		"nothing":           func(_, _ context.CancelCauseFunc) {},
		"own":               func(own, _ context.CancelCauseFunc) { own(errOwn) },
		"own, twice":        func(own, _ context.CancelCauseFunc) { own(errOwn); own(errParent) },
		"own, without why":  func(own, _ context.CancelCauseFunc) { own(nil) },
		"parent":            func(_, parent context.CancelCauseFunc) { parent(errParent) },
		"parent, then own":  func(own, parent context.CancelCauseFunc) { parent(errParent); own(errOwn) },
		"own, then parent":  func(own, parent context.CancelCauseFunc) { own(errOwn); parent(errParent) },
		"own, without, two": func(own, _ context.CancelCauseFunc) { own(nil); own(errOwn) },
	} {
		for look, first := range map[string]func(context.Context){
			"nobody looks":  func(context.Context) {},
			"Done first":    func(ctx context.Context) { ctx.Done() },
			"Err first":     func(ctx context.Context) { _ = ctx.Err() },
			"a child first": func(ctx context.Context) { _, cancel := context.WithCancel(ctx); cancel() },
		} {
			t.Run(name+"/"+look, func(t *testing.T) {
				wantParent, endWantParent := context.WithCancelCause(context.WithValue(t.Context(), key{}, 7))
				want, endWant := context.WithCancelCause(wantParent)
				gotParent, endGotParent := context.WithCancelCause(context.WithValue(t.Context(), key{}, 7))
				var got contexts.Lazy
				got.Init(gotParent)
				defer endWantParent(nil)
				defer endGotParent(nil)
				defer endWant(nil)
				defer got.Cancel(nil)

				first(want)
				first(&got)
				ends(endWant, endWantParent)
				ends(got.Cancel, endGotParent)
				// A child made now, and one through a context that package context does not know.
				child, endChild := context.WithCancel(&got)
				defer endChild()
				if want.Err() != got.Err() || want.Err() != child.Err() { //nolint:errorlint // the very same
					t.Errorf("Err: want %v, got %v, of a child %v", want.Err(), got.Err(), child.Err())
				}
				if w, g, c := context.Cause(want), context.Cause(&got), context.Cause(child); w != g || w != c { //nolint:errorlint // the very same
					t.Errorf("Cause: want %v, got %v, of a child %v", w, g, c)
				}
				if w, g := closed(want), closed(&got); w != g || g != closed(child) {
					t.Errorf("Done: want %v, got %v, of a child %v", w, g, closed(child))
				}
				if got.Value(key{}) != 7 || child.Value(key{}) != 7 {
					t.Error("values of the parent are gone")
				}
			})
		}
	}
}

func closed(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// Those who wait for a context hear of its end, whichever end it is, and however they came to wait.
func TestLazy_WaitersHearOfTheEnd(t *testing.T) {
	for range 200 {
		parent, endParent := context.WithCancelCause(t.Context())
		var ctx contexts.Lazy
		ctx.Init(parent)
		var waiters sync.WaitGroup
		for i := range 8 {
			waiters.Go(func() {
				var waiting context.Context = &ctx
				if i%2 == 0 {
					child, cancel := context.WithTimeout(context.WithValue(waiting, key{}, i), time.Hour)
					defer cancel()
					waiting = child
				}
				<-waiting.Done()
				if cause := context.Cause(waiting); cause != errOwn && cause != errParent { //nolint:errorlint // itself
					t.Errorf("cause is %v", cause)
				}
			})
		}
		waiters.Go(func() { ctx.Cancel(errOwn) })
		waiters.Go(func() { endParent(errParent) })
		waiters.Wait()
	}
}

func TestLazy_CostsNothingWhileNobodyLooks(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	if n := testing.AllocsPerRun(100, func() {
		var ctx contexts.Lazy
		ctx.Init(parent)
		if ctx.Err() != nil {
			t.Error(ctx.Err())
		}
		ctx.Cancel(errOwn)
	}); n > 1 { // the context itself
		t.Errorf("%v allocations", n)
	}
}
