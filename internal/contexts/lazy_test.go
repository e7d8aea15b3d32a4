package contexts_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/contexts"
)

func TestLazy_KeepsItsEnd(t *testing.T) {
	why := errors.New("grace")
	parent, cancel := context.WithCancelCause(t.Context())
	var l contexts.Lazy
	l.Begin(parent)
	cancel(why)
	before, beforeCause := l.Err(), context.Cause(&l)
	l.Cancel(nil)
	if l.Err() != before || context.Cause(&l) != beforeCause { //nolint:errorlint // themselves
		t.Errorf("was %v, %v; is %v, %v", before, beforeCause, l.Err(), context.Cause(&l))
	}
	dead, stop := context.WithDeadline(t.Context(), time.Time{})
	defer stop()
	var d contexts.Lazy
	d.Begin(dead)
	before = d.Err()
	d.Cancel(nil)
	if d.Err() != before { //nolint:errorlint // itself
		t.Errorf("was %v; is %v", before, d.Err())
	}
}
