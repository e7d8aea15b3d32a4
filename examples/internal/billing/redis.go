package billing

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
)

// silent keeps go-redis from logging, which expects that before the first client.
var silent = sync.OnceFunc(logging.Disable)

// openRedis opens a store in Redis. Call the function when it is not used any more.
func openRedis(ctx context.Context, url string) (*redisstore.Store, func() error, error) {
	silent()
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, shop.NoServer("redis", shop.Redacted(url), err)
	}
	opts.ContextTimeoutEnabled = true // contexts interrupt waits for the network too
	rdb := redis.NewClient(opts)
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
		defer cancel()
		_, err = store.Check(ctx) // whether the server keeps what it confirms
	}
	if err != nil {
		return nil, nil, errors.Join(shop.NoServer("redis", shop.Redacted(url), err), rdb.Close())
	}
	return store, rdb.Close, nil
}
