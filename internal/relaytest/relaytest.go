// Package relaytest runs relays in the tests of outboxes, in real time.
package relaytest

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Quick is a config of relays that poll often.
func Quick() outbox.Config {
	return outbox.Config{
		PollInterval: 5 * time.Millisecond,
		Backoff:      oncemill.Backoff{Min: 2 * time.Millisecond, Max: 20 * time.Millisecond},
		Logger:       slog.New(slog.DiscardHandler),
	}
}

// Start runs a relay. It returns what stops the relay and waits for its end.
func Start(t testing.TB, s outbox.Store, p producer.Publisher, c outbox.Config) (stop func()) {
	t.Helper()
	r, err := outbox.NewRelay(s, p, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Eventually waits until the condition holds.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// A Broker remembers what was published. The zero value acknowledges everything.
type Broker struct {
	Answer func(ctx context.Context, messages []producer.Message) error // may be nil

	mu  sync.Mutex
	got []producer.Message
}

// Publish implements [producer.Publisher].
func (b *Broker) Publish(ctx context.Context, messages ...producer.Message) error {
	b.mu.Lock()
	b.got = append(b.got, messages...)
	b.mu.Unlock()
	if b.Answer == nil {
		return nil
	}
	return b.Answer(ctx, messages)
}

// Messages are what was published, in order.
func (b *Broker) Messages() []producer.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

// Copies returns how often each ID was published.
func (b *Broker) Copies() map[string]int {
	n := map[string]int{}
	for _, m := range b.Messages() {
		n[m.ID]++
	}
	return n
}
