package producer_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/producer"
)

// wantInvalid checks that an error is an *InvalidError for the field, and returns it.
func wantInvalid(t testing.TB, err error, field string) *producer.InvalidError {
	t.Helper()
	var invalid *producer.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("error %v (%T), want an *InvalidError for %q", err, err, field)
	}
	if invalid.Field != field {
		t.Errorf("the error is for %q, want %q: %v", invalid.Field, field, err)
	}
	return invalid
}

var long = strings.Repeat("x", 513)

// broker is a Watermill publisher that remembers, and fails for the topics that it is told.
type broker struct {
	mu   sync.Mutex
	sent []*message.Message
	by   map[string][]string // IDs by topic
	fail map[string]error
}

func (b *broker) Publish(topic string, messages ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail[topic]; err != nil {
		return err
	}
	if b.by == nil {
		b.by = map[string][]string{}
	}
	for _, m := range messages {
		b.sent = append(b.sent, m)
		b.by[topic] = append(b.by[topic], m.UUID)
	}
	return nil
}

func (*broker) Close() error { return nil }

// published is a Publisher that remembers.
type published struct {
	messages []producer.Message
	ctx      context.Context
	err      error
}

func (p *published) Publish(ctx context.Context, messages ...producer.Message) error {
	p.ctx = ctx
	p.messages = append(p.messages, messages...)
	return p.err
}
