package consumer_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// virtual runs a test in a bubble of virtual time, which also fails if a goroutine is left behind.
func virtual(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

func newStore(t testing.TB) *dedupstore.Memory {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newProcessor(t testing.TB, store dedupstore.Store, c consumer.Config) *consumer.Processor {
	t.Helper()
	if c.Group == "" {
		c.Group = "billing"
	}
	if c.Policy.Logger == nil {
		c.Policy.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	p, err := consumer.New(store, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// letters is a dead-letter publisher that remembers, and fails on request.
type deadLetters struct {
	mu   sync.Mutex
	sent []producer.Message
	fail error
}

func (l *deadLetters) Publish(_ context.Context, messages ...producer.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	l.sent = append(l.sent, messages...)
	return nil
}

func (l *deadLetters) only(t testing.TB) producer.Message {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) != 1 {
		t.Fatalf("%d dead letters, want exactly one: %v", len(l.sent), l.sent)
	}
	return l.sent[0]
}

func as[E error](t testing.TB, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want a %T", err, err, e)
	}
	return e
}
