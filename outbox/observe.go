package outbox

import (
	"context"
	"slices"
	"strconv"

	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// SystemOf names the messaging system that a publisher sends to, for telemetry: what its method MessagingSystem says, or
// "unknown".
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
		ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
		defer cancel()
		s, err := inspector.Stats(ctx)
		return telemetry.Stats{Pending: s.Pending, Dead: s.Dead, Oldest: s.Oldest}, err
	})
}

// message is what a row publishes. An attempt before it that got no answer may have been a copy, and consumers are told.
func message(row *Row) producer.Message {
	m := row.Message
	if row.Unknowns > 0 {
		m.Header = m.Header.With(producer.HeaderResend, strconv.Itoa(row.Unknowns))
	}
	return m
}

// begin says that messages are about to be published.
func (r *Relay) begin(ctx context.Context, rows []Row, messages []producer.Message) (context.Context, *telemetry.Batch) {
	within, batch := r.telemetry.Begin(ctx, len(rows))
	if batch == nil {
		return ctx, nil
	}
	for i, row := range rows {
		m := &messages[i]
		age := row.Age
		if m.Header.Get(producer.HeaderPurpose) == producer.PurposeReplay {
			age = 0
		}
		m.Header = batch.Send(within, m.Topic, m.ID, m.Header, age)
	}
	return within, batch
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

// end says what became of them.
func end(ctx context.Context, batch *telemetry.Batch, given []answer) {
	if batch == nil {
		return
	}
	failed := len(given) > 0
	for i, a := range given {
		batch.Sent(ctx, i, a.err, a.unknown)
		failed = failed && a.err != nil
	}
	batch.End(ctx, failed)
}
