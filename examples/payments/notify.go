package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// notify tells the API of receipts until ctx ends. Then it drains: calls that have begun are finished.
func notify(ctx context.Context, o options, b *broker, store dedupstore.Store, pub producer.Publisher) error {
	once, err := consumer.New(store, consumer.Config{
		Group: "notify", DeadLetters: pub, DeadLetterTopic: b.dead(), Policy: o.policy(),
	})
	if err != nil {
		return err
	}
	cons, err := b.consumer(ctx, b.receiptStream(), notifyConsumer, o.lease)
	if err != nil {
		return err
	}
	client := newClient()
	defer client.CloseIdleConnections()
	worker, err := natsjs.NewWorker(once, b.js, cons, callAPI(client, o.api), natsjs.Config{Handler: "call-api", MaxInFlight: window})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// newClient returns a client that takes a redirect for an answer: it would follow one by GET, and what it finds there, such
// as the page of a login, would be taken for a transfer.
func newClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: window},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       5 * time.Second,
	}
}

// callAPI is the handler. It may call a second time, after a crash or a lost answer, and beside the first call if its process
// stood still for longer than the lease; always with the same idempotency key.
func callAPI(client *http.Client, url string) natsjs.Handler {
	return func(ctx context.Context, msg jetstream.Msg) error {
		var r receipt
		if err := json.Unmarshal(msg.Data(), &r); err != nil {
			return oncemill.Permanent(fmt.Errorf("this is not a receipt: %w", err))
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/transfers", bytes.NewReader(msg.Data()))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Idempotency-Key", oncemill.FromContext(ctx).ID("transfer"))
		response, err := client.Do(request)
		if err != nil {
			return oncemill.Uncounted(err) // tried again for as long as the API is away
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		switch {
		case response.StatusCode < http.StatusMultipleChoices:
			return err
		case slices.Contains(passing, response.StatusCode):
			return oncemill.RetryAfter(5*time.Second, oncemill.Uncounted(fmt.Errorf("the API answers %s", response.Status)))
		case response.StatusCode < http.StatusInternalServerError:
			return oncemill.Permanent(fmt.Errorf("the API answers %s", response.Status))
		case response.StatusCode == http.StatusInternalServerError: // it may be this transfer: MaxAttempts bounds that
			return fmt.Errorf("the API answers %s", response.Status)
		}
		return oncemill.Uncounted(fmt.Errorf("the API answers %s", response.Status))
	}
}

// passing are the 4xx that say nothing of the transfer, only of this moment. 409 stands for a first call with this key that
// still runs there, after a takeover: its transfer happens, and must not be stored as a failure here.
var passing = []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests}

// outcomes is where notify keeps its outcomes: in Redis, or in the database. Call the function when it is not used any more.
func (o options) outcomes(db database) (dedupstore.Store, func() error, error) {
	if o.redis == "" {
		return db.leased(), func() error { return nil }, nil
	}
	settings, err := redis.ParseURL(o.redis)
	if err != nil {
		return nil, nil, fmt.Errorf("-redis: %w", err)
	}
	settings.ContextTimeoutEnabled = true // contexts interrupt waits for the network too
	rdb := redis.NewClient(settings)
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		_ = rdb.Close()
		return nil, nil, err
	}
	return store, rdb.Close, nil
}

// checkRedis looks whether the server of the flag can be used.
func (o options) checkRedis(ctx context.Context) error {
	if o.redis == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	store, done, err := o.outcomes(nil)
	if err != nil {
		return err
	}
	defer func() { _ = done() }()
	if _, err := store.(*redisstore.Store).Check(ctx); err != nil {
		return shop.NoServer("redis", shop.Redacted(o.redis), err)
	}
	return nil
}
