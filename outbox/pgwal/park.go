package pgwal

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Only what the transaction itself wrote, or made pending again, becomes dead.
const parkedSQL = `
UPDATE {table} SET dead_at = clock_timestamp(), failures = $3::integer, unknowns = nullif($4::integer, 0), last_error = $5::text
WHERE id = $1::text AND {topic} = $2::text AND published_at IS NULL AND dead_at IS NULL AND xmin = pg_current_xact_id()::xid`

// park writes messages of an Emitter as dead rows, and leaves out those that it has written before.
func (r *Relay) park(ctx context.Context, batch []verdict) error {
	for _, v := range batch {
		if v.row.parked {
			continue
		}
		err := r.parkOne(ctx, v, v.row.message)
		if refusedByOutbox(err) { // it must not hold up the log
			err = r.parkOne(ctx, v, stranger(v.row, v.row.message.Topic))
		}
		if refusedByOutbox(err) { // the topic itself cannot be kept
			err = r.parkOne(ctx, v, stranger(v.row, r.cfg.Prefix))
		}
		if err != nil {
			return r.explain("write a dead message", err)
		}
		v.row.parked = true
	}
	return nil
}

// parkOne is repeated without harm.
func (r *Relay) parkOne(ctx context.Context, v verdict, m producer.Message) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	return pgx.BeginFunc(ctx, r.cfg.Pool, func(tx pgx.Tx) error {
		if err := r.cfg.Dead.In(tx).Publish(ctx, m); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, r.sql.parked, m.ID, m.Topic, v.failures, v.unknowns, v.reason)
		return err
	})
}

// refusedByOutbox says whether the outbox cannot hold the message: it has another one with this ID, or does not take it
// as it is.
func refusedByOutbox(err error) bool {
	_, conflict := errors.AsType[*outbox.ConflictError](err)
	_, invalid := errors.AsType[*producer.InvalidError](err)
	return conflict || invalid
}

// stranger is a message under an ID of its own, beside the one that has its ID.
func stranger(r *row, topic string) producer.Message {
	m := r.message
	m.ID = ids.Derive("oncemill/pgwal", m.Topic, m.ID, string(m.Payload))
	m.Topic = topic
	m.Key = ""
	m.Header = producer.Header{producer.HeaderOriginalID: r.message.ID}
	return m
}
