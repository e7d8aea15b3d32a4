package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A meter counts messages.
type meter struct {
	messages int
	handled  atomic.Int64 // by the handler
	done     atomic.Int64 // with everything around it
	complete chan struct{}
	handling func() // is told of each message that the handler gets; nil: nobody is

	once   sync.Once
	failed chan struct{}
	err    error
}

func newMeter(messages int) *meter {
	return &meter{messages: messages, complete: make(chan struct{}), failed: make(chan struct{})}
}

// handle counts a message that the handler gets.
func (m *meter) handle() {
	if m.handling != nil {
		m.handling()
	}
	m.handled.Add(1)
}

// settle counts a message that is done, or fails the measurement.
func (m *meter) settle(err error) {
	if err != nil {
		m.once.Do(func() {
			m.err = err
			close(m.failed)
		})
		return
	}
	if m.done.Add(1) == int64(m.messages) {
		close(m.complete)
	}
}

// middleware stands outside all others.
func (m *meter) middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := next(msg)
		m.settle(err)
		return out, err
	}
}

// wait waits until all messages are done.
func (m *meter) wait(ctx context.Context) error {
	select {
	case <-m.complete:
		return nil
	case <-m.failed:
		return m.err
	case <-ctx.Done():
		return fmt.Errorf("%d of %d messages are done: %w", m.done.Load(), m.messages, context.Cause(ctx))
	}
}

// exact returns an error unless the handler got every message once. It is asked when nothing is delivered any more.
func (m *meter) exact() error {
	if n := m.handled.Load(); n != int64(m.messages) {
		return fmt.Errorf("the handler got %d messages, want %d", n, m.messages)
	}
	return nil
}
