package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
)

func ExampleNew() {
	// A stand-in for your server. It does not know INFO, so the check of the settings is left out; with a real server
	// give an empty Config.
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Config{SkipCheck: true})
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	request := dedupstore.Request{
		Key:         dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "order-17"},
		Owner:       "a-random-token-of-this-delivery",
		Lease:       30 * time.Second,
		Retention:   24 * time.Hour,
		MaxAttempts: 5,
	}
	answer, err := dedupstore.ClaimOne(ctx, store, request)
	if err != nil {
		panic(err)
	}
	fmt.Println(answer.Status, answer.Claim.Attempt)

	err = dedupstore.SettleOne(ctx, store, answer.Claim, dedupstore.Finish{
		Outcome:   dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("charged")},
		Retention: 24 * time.Hour,
	})
	if err != nil {
		panic(err)
	}
	request.Owner = "a-random-token-of-a-duplicate"
	answer, err = dedupstore.ClaimOne(ctx, store, request)
	fmt.Println(answer.Status, string(answer.Outcome.Result), err)
	// Output:
	// acquired_run 1
	// done charged <nil>
}
