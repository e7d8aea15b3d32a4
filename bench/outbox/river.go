package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverQueue is River with a job that publishes.
type riverQueue struct {
	pool     *pgxpool.Pool
	cooldown time.Duration // between fetches
	inserter *river.Client[pgx.Tx]
}

type publishArgs struct {
	Payload json.RawMessage `json:"p"`
}

func (publishArgs) Kind() string { return "publish" }

type publishWorker struct {
	river.WorkerDefaults[publishArgs]
	js jetstream.JetStream
}

func (w *publishWorker) Work(ctx context.Context, task *river.Job[publishArgs]) error {
	_, err := w.js.Publish(ctx, topic, task.Args.Payload)
	return err
}

var riverLogger = slog.New(slog.DiscardHandler)

func (q *riverQueue) install(ctx context.Context) error {
	m, err := rivermigrate.New(riverpgxv5.New(q.pool), &rivermigrate.Config{Logger: riverLogger})
	if err != nil {
		return err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if err := q.uninstall(ctx); err != nil {
		return err
	}
	q.inserter, err = river.NewClient(riverpgxv5.New(q.pool), &river.Config{Logger: riverLogger})
	return err
}

// uninstall leaves River's tables, empty.
func (q *riverQueue) uninstall(ctx context.Context) error {
	_, err := q.pool.Exec(ctx, `TRUNCATE river_job`)
	return err
}

func (q *riverQueue) write(ctx context.Context, payload []byte) error {
	_, err := q.inserter.Insert(ctx, publishArgs{payload}, nil)
	return err
}

func (q *riverQueue) relay(ctx context.Context, conn *nats.Conn) (stop func() error, err error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &publishWorker{js: js})
	c, err := river.NewClient(riverpgxv5.New(q.pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		Workers: workers, Logger: riverLogger, FetchCooldown: q.cooldown, FetchPollInterval: 2 * q.cooldown,
	})
	if err != nil {
		return nil, err
	}
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	return func() error { return c.Stop(context.WithoutCancel(ctx)) }, nil
}

func (q *riverQueue) left(ctx context.Context) (n int, err error) {
	err = q.pool.QueryRow(ctx, `SELECT count(*) FROM river_job WHERE state <> 'completed'`).Scan(&n)
	return n, err
}
