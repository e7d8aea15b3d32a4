package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A way is how a service keeps duplicates from its handler.
type way struct {
	name   string // in the table
	broker bool   // messages carry Nats-Msg-Id

	// guard makes the middleware. end is called when no handler runs any more.
	guard func(s *service) (guard message.HandlerMiddleware, end func(context.Context) error, err error)

	// tx is the transaction in which the handler writes. Nil: each statement is one by itself.
	tx func(ctx context.Context) pgx.Tx
}

// ways are the columns of the table. A key is the name of a service, too.
var ways = map[string]way{
	"redis":        {name: "Oncemill, Redis", guard: leased},
	"inbox":        {name: "Oncemill, inbox", guard: inbox, tx: pgstore.Tx},
	"table":        {name: "a table by hand", guard: simply(rowInTransaction), tx: txOf},
	"setnx":        {name: "`SET NX`", guard: simply(setNX)},
	"deduplicator": {name: "Deduplicator", guard: deduplicator},
	"broker":       {name: "`Nats-Msg-Id`", guard: simply(nothing), broker: true},
}

var order = []string{"redis", "inbox", "table", "setnx", "deduplicator", "broker"}

const (
	lease  = 3 * time.Second // a crashed run waits for its end. Services use the default of 30 s
	window = 24 * time.Hour
)

func leased(s *service) (message.HandlerMiddleware, func(context.Context) error, error) {
	store, err := redisstore.New(s.redis, redisstore.Config{Logger: quiet})
	if err != nil {
		return nil, nil, err
	}
	return oncemillOver(s, store)
}

func inbox(s *service) (message.HandlerMiddleware, func(context.Context) error, error) {
	store, err := pgstore.New(s.pool, pgstore.Config{Logger: quiet})
	if err != nil {
		return nil, nil, err
	}
	return oncemillOver(s, store.Inbox())
}

func oncemillOver(s *service, store dedupstore.Store) (message.HandlerMiddleware, func(context.Context) error, error) {
	once, err := consumer.New(store, consumer.Config{
		Group: s.Shop,
		Policy: oncemill.Policy{
			Window: window, Lease: lease, Backoff: oncemill.Backoff{Min: nakDelay, Max: time.Second}, Logger: quiet,
		},
		DeadLetters: oncewatermill.FromPublisher(post{s}), DeadLetterTopic: deadLetters,
	})
	if err != nil {
		return nil, nil, err
	}
	return oncewatermill.Middleware(once), once.Close, nil
}

var quiet = slog.New(slog.DiscardHandler)

// simply makes a way of a middleware that needs no end.
func simply(guard func(*service, message.HandlerFunc) message.HandlerFunc) func(*service) (
	message.HandlerMiddleware, func(context.Context) error, error,
) {
	return func(s *service) (message.HandlerMiddleware, func(context.Context) error, error) {
		return func(next message.HandlerFunc) message.HandlerFunc { return guard(s, next) },
			func(context.Context) error { return nil }, nil
	}
}

func nothing(_ *service, next message.HandlerFunc) message.HandlerFunc { return next }

// setNX is the form that is written most: the key is set before the handler runs, and deleted if it errs. Whoever finds
// the key acknowledges the message.
func setNX(s *service, next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx, key := context.WithoutCancel(msg.Context()), processedKey(msg.UUID)
		first, err := s.redis.SetNX(ctx, key, 1, window).Result() // SET key 1 EX 86400 NX
		if err != nil || !first {
			return nil, err
		}
		outputs, err := next(msg)
		if err != nil {
			return nil, errors.Join(err, s.redis.Del(ctx, key).Err())
		}
		return outputs, nil
	}
}

func processedKey(id string) string { return "processed:" + id }

// deduplicator is Watermill's. It compares message IDs, which is fair: by default it compares sums of payloads.
func deduplicator(*service) (message.HandlerMiddleware, func(context.Context) error, error) {
	seen, err := middleware.NewMapExpiringKeyRepository(10 * time.Minute)
	dedup := middleware.Deduplicator{
		KeyFactory: func(msg *message.Message) (string, error) { return msg.UUID, nil },
		Repository: seen,
		Timeout:    time.Minute,
	}
	return dedup.Middleware, func(context.Context) error { return nil }, err
}

// rowInTransaction inserts the message's ID into a table, in the transaction of the handler.
func rowInTransaction(s *service, next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (outputs []*message.Message, err error) {
		ctx := msg.Context()
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if first, err := insertProcessed(ctx, tx, msg.UUID); err != nil || !first {
				return err
			}
			msg.SetContext(context.WithValue(ctx, txKey{}, tx))
			outputs, err = next(msg)
			return err
		})
		return outputs, err
	}
}

type txKey struct{}

func txOf(ctx context.Context) pgx.Tx { return ctx.Value(txKey{}).(pgx.Tx) }

// An execer is a transaction, or a pool for a statement that is one by itself.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func insertProcessed(ctx context.Context, e execer, id string) (first bool, err error) {
	tag, err := e.Exec(ctx, `INSERT INTO processed_messages (message_id) VALUES ($1) ON CONFLICT DO NOTHING`, id)
	return tag.RowsAffected() == 1, err
}
