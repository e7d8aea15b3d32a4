package pgwal

import (
	"context"
	"strconv"
	"time"

	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// name names the outbox in metrics.
func (c Config) name() string {
	switch {
	case c.Name != "":
		return c.Name
	case c.messages():
		return c.Prefix
	case c.Schema != "":
		return c.Schema + "." + c.Table
	}
	return c.Table
}

const statsSQL = `
SELECT count(*), coalesce(greatest(0, extract(epoch FROM clock_timestamp() - min(coalesce(not_before, written_at)))), 0)::float8,
	(SELECT count(*) FROM {table} WHERE dead_at IS NOT NULL)
FROM {table} WHERE published_at IS NULL AND dead_at IS NULL`

// gauges shows in metrics how many rows the table has. What an Emitter wrote stands in no table.
func (r *Relay) gauges(ctx context.Context) (stop func(), err error) {
	if r.cfg.messages() {
		return func() {}, nil
	}
	query := r.sql.stats // it is the same always, and the others change with the connection
	return r.telemetry.Watch(ctx, func(ctx context.Context) (s telemetry.Stats, err error) {
		ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
		defer cancel()
		var oldest float64
		err = r.cfg.Pool.QueryRow(ctx, query).Scan(&s.Pending, &oldest, &s.Dead)
		s.Oldest = time.Duration(oldest * float64(time.Second))
		return s, err
	})
}

// outgoing is what a row publishes. An attempt before it that got no answer may have been a copy, and consumers are told.
func outgoing(r *row) producer.Message {
	m := r.message
	if r.unknowns > 0 {
		m.Header = m.Header.With(producer.HeaderResend, strconv.Itoa(r.unknowns))
	}
	return m
}

// begin says that messages are about to be published. Their rows are as old as the clocks of the database and of this
// process say together; not known is the age of what an Emitter wrote, and of what was delayed or published before.
func (r *Relay) begin(ctx context.Context, rows []*row, messages []producer.Message) (context.Context, *telemetry.Batch) {
	r.telemetry.Leased(ctx, len(rows))
	within, batch := r.telemetry.Begin(ctx, len(rows))
	if batch == nil {
		return ctx, nil
	}
	for i, o := range rows {
		m := &messages[i]
		var age time.Duration
		if o.xid != 0 {
			age = max(0, time.Since(epoch.Add(time.Duration(o.at)*time.Microsecond)))
		}
		m.Header = batch.Send(within, m.Topic, m.ID, m.Header, age)
	}
	return within, batch
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
