package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/webhook"
)

// published stands in for a broker: it prints messages, and remembers them.
type published struct {
	out   io.Writer
	mu    sync.Mutex
	lines []string
}

// Publish implements producer.Publisher.
func (p *published) Publish(_ context.Context, messages ...producer.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range messages {
		line := fmt.Sprintf("%s %s %s", m.Topic, m.Header[webhook.HeaderEventID], m.Payload)
		shop.Say(p.out, "published %s\n", line)
		p.lines = append(p.lines, line)
	}
	return nil
}

// list answers with a line for each message, after the relay has published what there is.
func (p *published) list(w http.ResponseWriter, r *http.Request, box outbox.Inspector) {
	err := shop.Poll(r.Context(), 10*time.Millisecond, func() (bool, error) {
		stats, err := box.Stats(r.Context())
		return stats.Pending == 0, err
	})
	if err != nil {
		http.Error(w, "the outbox does not answer", http.StatusServiceUnavailable)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		shop.Say(w, "%s\n", line)
	}
}
