package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// A keptStore is where dedup records are, with what ends the connection to it.
type keptStore struct {
	dedupstore.Store
	close func() error // nil: there is nothing to end
}

func openStore(ctx context.Context, o options) (keptStore, error) {
	switch o.store {
	case inRedis:
		return openRedis(ctx, o.redisURL)
	case inMemory:
		store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		return keptStore{Store: store}, err
	}
	return openSQLite(ctx, o.dir)
}

// openSQLite keeps the records in a file of their own: SQLite has one writer a file, and the shop writes much. The ledger
// is the outside world here, so nothing is lost by that; a handler whose effects are in a database of its own would have
// both in one file, and use the store's inbox.
func openSQLite(ctx context.Context, dir string) (keptStore, error) {
	db, err := sqliteoutbox.Open(ctx, filepath.Join(dir, "dedup.db"))
	if err != nil {
		return keptStore{}, fmt.Errorf("open the dedup store: %w", err)
	}
	store, err := sqlitestore.New(db, sqlitestore.Config{})
	if err == nil {
		err = store.Migrate(ctx)
	}
	if err == nil {
		_, err = store.Check(ctx)
	}
	if err != nil {
		return keptStore{}, errors.Join(err, db.Close())
	}
	return keptStore{Store: store, close: db.Close}, nil
}

func openRedis(ctx context.Context, url string) (keptStore, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return keptStore{}, fmt.Errorf("-redis: %w", err)
	}
	opts.ContextTimeoutEnabled = true // contexts interrupt waits for the network too
	rdb := redis.NewClient(opts)
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err == nil {
		_, err = store.Check(ctx)
	}
	if err != nil {
		return keptStore{}, errors.Join(fmt.Errorf("check Redis: %w", err), rdb.Close())
	}
	return keptStore{Store: store, close: rdb.Close}, nil
}
