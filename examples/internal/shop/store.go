package shop

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
)

// AnswerTime is how long a server has to answer at the start.
const AnswerTime = 5 * time.Second

// openStore opens the store of outcomes: in memory if embedded, else Redis. Call the function when it is not used any more.
func openStore(ctx context.Context, o Options) (dedupstore.Store, func() error, error) {
	if o.Embedded {
		store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		return store, func() error { return nil }, err
	}
	opts, err := redis.ParseURL(o.Redis)
	if err != nil {
		return nil, nil, fmt.Errorf("-redis: %w", err)
	}
	opts.ContextTimeoutEnabled = true // contexts interrupt waits for the network too
	rdb := redis.NewClient(opts)
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, AnswerTime)
		defer cancel()
		var report dedupstore.Report
		report, err = store.Check(ctx)
		for _, warning := range report.Warnings {
			slog.Warn(warning)
		}
	}
	if err != nil {
		_ = rdb.Close()
		return nil, nil, NoServer("redis", Redacted(o.Redis), err)
	}
	return store, rdb.Close, nil
}

// NoServer says that the server at the address in a flag cannot be used.
func NoServer(flagName, address string, err error) error {
	return fmt.Errorf("the server at -%s %s cannot be used: %w\n(`docker compose --profile kafka up -d --wait` starts Redis, NATS, PostgreSQL and Kafka; -embedded needs none)", flagName, address, err)
}
