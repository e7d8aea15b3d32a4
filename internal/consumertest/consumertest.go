// Package consumertest is for tests of consumers: processors on a store in memory, and what dead letters go to.
package consumertest

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// Virtual runs a test in a bubble of virtual time, which also fails if a goroutine is left behind.
func Virtual(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// NewStore returns an empty store.
func NewStore(t testing.TB) *dedupstore.Memory {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// NewProcessor returns a processor, of the group billing unless the config names one. It logs nothing unless told.
func NewProcessor(t testing.TB, store dedupstore.Store, c consumer.Config) *consumer.Processor {
	t.Helper()
	if c.Group == "" {
		c.Group = "billing"
	}
	if c.Policy.Logger == nil {
		c.Policy.Logger = slog.New(slog.DiscardHandler)
	}
	p, err := consumer.New(store, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Logged returns a processor that logs to a buffer.
func Logged(t testing.TB, c consumer.Config) (*consumer.Processor, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	c.Policy.Logger = slog.New(slog.NewTextHandler(&log, nil))
	return NewProcessor(t, NewStore(t), c), &log
}

// Lossy is a store that loses every claim as soon as it is settled.
type Lossy struct{ dedupstore.Store }

// Settle implements [dedupstore.Store].
func (s Lossy) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, func(context.Context, dedupstore.Claim, dedupstore.Settlement) error {
		return dedupstore.ErrClaimLost
	})
}

// DeadLetters is a publisher of dead letters that remembers, and fails on request.
type DeadLetters struct {
	Sent []producer.Message
	Fail error

	mu sync.Mutex
}

// Publish implements [producer.Publisher].
func (l *DeadLetters) Publish(_ context.Context, messages ...producer.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Fail != nil {
		return l.Fail
	}
	l.Sent = append(l.Sent, messages...)
	return nil
}

// Only returns the dead letter. It fails the test unless there is exactly one.
func (l *DeadLetters) Only(t testing.TB) producer.Message {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.Sent) != 1 {
		t.Fatalf("%d dead letters, want exactly one: %v", len(l.Sent), l.Sent)
	}
	return l.Sent[0]
}
