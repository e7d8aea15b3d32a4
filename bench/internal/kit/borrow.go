package kit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
)

// ErrMissing says that this machine lacks what a server needs.
var ErrMissing = errors.New("the server cannot be had")

// Borrow lets a function get servers of packages that give them to tests alone. The caller gives them back, which does
// what a test cleans up. The error wraps [ErrMissing] where a test would be skipped.
func Borrow(get func(t testing.TB)) (giveBack func() error, err error) {
	p := &programTB{}
	defer func() {
		switch gone := recover().(type) {
		case nil:
		case programError:
			err = errors.Join(gone.error, p.end())
		default:
			panic(gone)
		}
	}()
	get(p)
	return p.end, nil
}

// A programTB stands for a test.
type programTB struct {
	testing.TB
	cleanups []func() error
	failed   error
}

type programError struct{ error }

func (p *programTB) Helper() {}

func (p *programTB) Context() context.Context { return context.Background() }

func (p *programTB) Cleanup(do func()) {
	p.cleanups = append(p.cleanups, func() error { do(); return nil })
}

func (p *programTB) TempDir() string {
	dir, err := os.MkdirTemp("", "oncemill-bench-")
	if err != nil {
		panic(programError{err})
	}
	p.cleanups = append(p.cleanups, func() error { return os.RemoveAll(dir) })
	return dir
}

func (p *programTB) Errorf(format string, args ...any) {
	p.failed = errors.Join(p.failed, fmt.Errorf(format, args...))
}

func (p *programTB) Fatalf(format string, args ...any) {
	panic(programError{fmt.Errorf(format, args...)})
}

func (p *programTB) Skip(args ...any) {
	panic(programError{fmt.Errorf("%w: %s", ErrMissing, fmt.Sprint(args...))})
}

// end runs the cleanups, the last one first.
func (p *programTB) end() error {
	for i := len(p.cleanups) - 1; i >= 0; i-- {
		p.failed = errors.Join(p.failed, p.cleanups[i]())
	}
	p.cleanups = nil
	return p.failed
}
