package outbox

import (
	"context"

	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// SystemOf names the messaging system that a publisher sends to, for telemetry: what its method MessagingSystem says,
// or "unknown".
func SystemOf(p producer.Publisher) string {
	if s, ok := p.(interface{ MessagingSystem() string }); ok {
		return s.MessagingSystem()
	}
	return telemetry.SystemUnknown
}

func name(store Store) string {
	if named, ok := store.(Named); ok {
		return named.Name()
	}
	return "outbox"
}

// watch shows in metrics how many rows there are.
func (r *Relay) watch(ctx context.Context) (stop func(), err error) {
	inspector, ok := r.store.(Inspector)
	if !ok {
		return func() {}, nil
	}
	return r.telemetry.Watch(ctx, func(ctx context.Context) (telemetry.Stats, error) {
		ctx, cancel := context.WithTimeout(ctx, r.cfg.storeTimeout())
		defer cancel()
		s, err := inspector.Stats(ctx)
		return telemetry.Stats(s), err
	})
}
