package main

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
)

// startMemory has no server and no client: its row shows what the load and the lines cost.
func startMemory(_ context.Context, s *server) (err error) {
	s.store, err = dedupstore.NewMemory(dedupstore.MemoryConfig{MaxBytes: 8 << 30})
	return err
}

func startRedis(_ context.Context, s *server) error {
	r, err := kit.StartRedis()
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: r.Addr, PoolSize: 2 * callers, ContextTimeoutEnabled: true})
	s.Cleanup(r.Stop, rdb.Close)
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		return err
	}
	s.Cleanup(kit.Quiet(store.Close))
	s.store, s.hand, s.reset = store, bySET(rdb), r.Flush
	s.extra = func(ctx context.Context, _ float64) ([]kit.Figure, error) {
		key, err := rdb.RandomKey(ctx).Result()
		if err != nil {
			return nil, err
		}
		size, err := rdb.MemoryUsage(ctx, key).Result()
		return recordSize(size, 1), err
	}
	return nil
}

// packed is how much of a record there is by hand in Redis, beside the owner.
const packed = 85

// bySET does not even look at the owner. What redisstore writes is packed, and so are these records.
func bySET(rdb *redis.Client) way {
	record := func(m message, rest []byte) string { return m.owner + string(rest[:packed]) }
	return func(ctx context.Context, m message) (func(context.Context) error, error) {
		fresh, err := rdb.SetNX(ctx, m.name(), record(m, claimed), keep).Result()
		if err == nil && !fresh {
			err = errDone
		}
		return func(ctx context.Context) error {
			there, err := rdb.SetXX(ctx, m.name(), record(m, settled), window).Result()
			if err == nil && !there {
				err = lost(m)
			}
			return err
		}, err
	}
}

const bucket = "bench"

func startNATS(_ context.Context, s *server) error {
	n, err := kit.StartNATS()
	if err != nil {
		return err
	}
	s.Cleanup(n.Stop)
	nc, err := nats.Connect(n.URL)
	if err != nil {
		return err
	}
	s.Cleanup(kit.Quiet(nc.Close))
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	var stream jetstream.Stream
	s.hand = byRevision(js)
	s.reset = func(ctx context.Context) (err error) {
		stream, err = kit.FreshStream(ctx, js, natskv.Bucket(bucket, 1))
		return err
	}
	s.extra = func(ctx context.Context, messages float64) ([]kit.Figure, error) {
		info, err := stream.Info(ctx)
		if err != nil {
			return nil, err
		}
		return recordSize(int64(info.State.Bytes), messages), nil
	}
	s.store, err = natskv.New(js, natskv.Config{Bucket: bucket})
	return err
}

// byRevision creates a key and updates it, as a bucket does, with a TTL each time.
func byRevision(js jetstream.JetStream) way {
	return func(ctx context.Context, m message) (func(context.Context) error, error) {
		subject := "$KV." + bucket + "." + strings.ReplaceAll(m.name(), ":", ".")
		ack, err := js.Publish(ctx, subject, append([]byte(m.owner), claimed...), jetstream.WithMsgTTL(keep),
			jetstream.WithExpectLastSequencePerSubject(0))
		var refused *jetstream.APIError
		if errors.As(err, &refused) && refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
			err = errDone
		}
		return func(ctx context.Context) error {
			_, err := js.Publish(ctx, subject, append([]byte(m.owner), settled...), jetstream.WithMsgTTL(window),
				jetstream.WithExpectLastSequencePerSubject(ack.Sequence))
			return err
		}, err
	}
}
