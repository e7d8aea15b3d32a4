package outbox

import (
	"context"
	"slices"

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

func name(store Store, cfg Config) string {
	if cfg.Name != "" {
		return cfg.Name
	}
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
		return telemetry.Stats{Pending: s.Pending, Dead: s.Dead, Oldest: s.Oldest}, err
	})
}

// died counts the rows that are dead, now that this is recorded: else they come again.
func (r *Relay) died(ctx context.Context, rows []Row, results []Result) {
	for _, result := range results {
		if result.State != Dead {
			continue
		}
		if i := slices.IndexFunc(rows, func(row Row) bool { return row.Number == result.Number }); i >= 0 {
			r.telemetry.Died(ctx, rows[i].Message.Topic)
		}
	}
}
