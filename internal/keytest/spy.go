package keytest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Spy remembers everything that is given to a store.
type Spy struct {
	dedupstore.Store
	mu   sync.Mutex
	seen []string
}

func (s *Spy) note(v any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf("%+v", v))
	if f, ok := v.(dedupstore.Finish); ok {
		s.seen = append(s.seen, string(f.Outcome.Result))
	}
}

// Seen is what was given to it.
func (s *Spy) Seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// Claim implements [dedupstore.Store].
func (s *Spy) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	for _, r := range requests {
		s.note(r)
	}
	return s.Store.Claim(ctx, requests)
}

// Settle implements [dedupstore.Store].
func (s *Spy) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	for _, settling := range settlings {
		s.note(settling.Settlement)
	}
	return s.Store.Settle(ctx, settlings)
}
