package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A meter counts records.
type meter struct {
	messages int
	dedup    bool                      // each record leaves one in Redis
	begun    atomic.Pointer[time.Time] // when the first came
	handled  atomic.Int64
	complete chan struct{}

	once   sync.Once
	failed chan struct{}
	err    error
}

func newMeter(messages int) *meter {
	return &meter{messages: messages, complete: make(chan struct{}), failed: make(chan struct{})}
}

// handle counts a record that the handler gets.
func (m *meter) handle() {
	switch m.handled.Add(1) {
	case 1:
		now := time.Now()
		m.begun.Store(&now)
	case int64(m.messages):
		close(m.complete)
	}
}

// fail ends the measurement.
func (m *meter) fail(err error) {
	m.once.Do(func() {
		m.err = err
		close(m.failed)
	})
}

// wait waits until all records are handled.
func (m *meter) wait(ctx context.Context) error {
	select {
	case <-m.complete:
		return nil
	case <-m.failed:
		return m.err
	case <-ctx.Done():
		return fmt.Errorf("%d of %d records are handled: %w", m.handled.Load(), m.messages, context.Cause(ctx))
	}
}

// exact returns an error unless the handler got every record once. It is asked when nothing is delivered any more.
func (m *meter) exact() error {
	if n := m.handled.Load(); n != int64(m.messages) {
		return fmt.Errorf("the handler got %d records, want %d", n, m.messages)
	}
	return nil
}
