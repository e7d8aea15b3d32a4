package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

const table = "oncemill_outbox"

// ours is an outbox of Oncemill's. Everything but the retention is as it is by default.
type ours struct {
	pool      *pgxpool.Pool
	url       string
	table     string
	retention time.Duration
	relays    int // each with a connection of its own to NATS
	box       *pgoutbox.Outbox
}

func (r *rig) ours(retention time.Duration) *ours {
	return &ours{pool: r.pool, url: r.nats.URL, table: table, retention: retention, relays: 1}
}

func (o *ours) install(ctx context.Context) (err error) {
	if err := o.uninstall(ctx); err != nil {
		return err
	}
	if o.box, err = pgoutbox.New(o.pool, pgoutbox.Config{Table: o.table}); err != nil {
		return err
	}
	return o.box.Migrate(ctx)
}

func (o *ours) uninstall(ctx context.Context) error {
	_, err := o.pool.Exec(ctx, fmt.Sprintf(`DROP TABLE IF EXISTS %[1]s, %[1]s_lease, %[1]s_settings`, o.table))
	return err
}

func (o *ours) write(ctx context.Context, payload []byte) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		return o.box.In(tx).Publish(ctx, producer.Message{Topic: topic, Payload: payload})
	})
}

func (o *ours) left(ctx context.Context) (int, error) {
	stats, err := o.box.Stats(ctx)
	return stats.Pending + stats.Dead, err
}

// A relayer is a relay of either kind.
type relayer interface {
	Run(ctx context.Context) error
}

func (o *ours) relay(ctx context.Context, conn *nats.Conn) (stop func() error, err error) {
	var stops []func() error
	stop = func() (err error) {
		for _, s := range stops {
			err = errors.Join(err, s())
		}
		return err
	}
	for i := range o.relays {
		if i > 0 {
			if conn, err = nats.Connect(o.url); err != nil {
				return nil, errors.Join(err, stop())
			}
			stops = append(stops, func() error { conn.Close(); return nil })
		}
		one, err := relayOn(ctx, conn, func(p producer.Publisher) (relayer, error) {
			return outbox.NewRelay(o.box, p, outbox.Config{Retention: o.retention})
		})
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		stops = append([]func() error{one}, stops...)
	}
	return stop, nil
}

// relayOn runs a relay. A message that the stream dropped because it had it is a copy like any other.
func relayOn(ctx context.Context, conn *nats.Conn, build func(producer.Publisher) (relayer, error)) (stop func() error, err error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	publisher, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		return nil, err
	}
	relay, err := build(publisher)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	return func() error {
		cancel()
		if err := <-ended; err != nil {
			return err
		}
		if n := publisher.Duplicates(); n > 0 {
			return fmt.Errorf("the stream dropped %d copies", n)
		}
		return nil
	}, nil
}
