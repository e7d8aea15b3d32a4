// Package consumertest is for tests of consumers: processors on a store in memory, stores that break their contract,
// and what dead letters go to.
package consumertest

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// Forgetful is a store for which every claim is the first.
type Forgetful struct{ dedupstore.Store }

// Claim implements [dedupstore.Store].
func (f Forgetful) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, f.claim)
}

func (f Forgetful) claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	id := r.Key.ID
	r.Key.ID = producer.NewID()
	a, err := dedupstore.ClaimOne(ctx, f.Store, r)
	a.Claim.Key.ID = id
	return a, err
}

// Extend implements [dedupstore.Store].
func (Forgetful) Extend(_ context.Context, extensions []dedupstore.Extension) []error {
	return make([]error, len(extensions))
}

// Settle implements [dedupstore.Store].
func (Forgetful) Settle(_ context.Context, settlings []dedupstore.Settling) []error {
	return make([]error, len(settlings))
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

// Renamed notes in a store that the group billing has had the handler settle for long, as if charge were its new name.
func Renamed(t testing.TB, store dedupstore.Store) {
	t.Helper()
	now := time.Now()
	err := store.(dedupstore.ScopeKeeper).NoteScopes(context.Background(), []dedupstore.ScopeUse{{
		Scope: dedupstore.Scope{Tenant: "default", Group: "billing", Handler: "settle"},
		First: now.Add(-24 * time.Hour), Last: now.Add(-time.Minute),
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// RenamedLine is in the log then.
const RenamedLine = "handler charge has no records in group billing; settle has, last used 1 minute ago: if this is " +
	"a new name, everything within the window runs again"

// Blocking makes a SourceHandler from a function that returns its decision, and is called in a goroutine of its own.
func Blocking(handle func(context.Context, consumer.Delivery) consumer.Decision) consumer.SourceHandler {
	return func(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
		go func() { done(handle(ctx, d)) }()
	}
}
