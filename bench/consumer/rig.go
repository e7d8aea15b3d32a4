package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

const rate, allCPU = kit.Rate, kit.AllCPU

// A rig is the servers, and how a variant is measured on them.
type rig struct {
	bench *kit.Bench
	redis *kit.Redis
	nats  *kit.NATS
}

func startRig(b *kit.Bench) (*rig, error) {
	r := &rig{bench: b}
	var err error
	if r.redis, err = kit.StartRedis(); err != nil {
		return nil, err
	}
	if r.nats, err = kit.StartNATS(); err != nil {
		return nil, errors.Join(err, r.redis.Stop())
	}
	return r, nil
}

func (r *rig) stop() error { return errors.Join(r.nats.Stop(), r.redis.Stop()) }

// A job is one measurement of one variant: a filled stream, and clients of its own.
type task struct {
	*meter
	conn     *nats.Conn
	js       jetstream.JetStream
	consumer jetstream.Consumer
	rdb      *redis.Client
}

// A way begins to consume, and returns what ends it. Whatever it takes before the consumption belongs into it, too: that is
// little, for so many messages.
type way struct {
	run   func(context.Context, *task) (stop func() error, err error)
	dedup bool // leaves a record for each message
}

// patience is how long a measurement may take.
const waitLimit = 2 * time.Minute

// variant measures a way with so many messages, times the scale.
func (r *rig) variant(name string, messages int, w way) kit.Variant {
	messages = max(int(float64(messages)*r.bench.Scale), 100)
	return kit.Variant{Name: name, Measure: func(ctx context.Context) ([]kit.Figure, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, waitLimit, fmt.Errorf("it takes longer than %v", waitLimit))
		defer cancel()
		return r.measure(ctx, messages, w)
	}}
}

func (r *rig) measure(ctx context.Context, messages int, w way) (figures []kit.Figure, err error) {
	if err := r.redis.Flush(ctx); err != nil {
		return nil, err
	}
	j, err := r.prepare(ctx, messages)
	if err != nil {
		return nil, err
	}
	defer func() {
		j.conn.Close()
		err = errors.Join(err, j.rdb.Close())
	}()
	var stop func() error
	err = r.bench.Profiled(func() (err error) {
		figures, err = r.cost(ctx, messages, func() error {
			if stop, err = w.run(ctx, j); err != nil {
				return err
			}
			return j.wait(ctx)
		})
		return err
	})
	if err == nil {
		err = j.acknowledged(ctx)
	}
	if stop != nil {
		err = errors.Join(err, stop())
	}
	if err == nil {
		err = errors.Join(j.exact(), r.records(ctx, messages, w.dedup))
	}
	return figures, err
}

// records counts what deduplication has left in Redis, beside what it knows of the handler's name.
func (r *rig) records(ctx context.Context, messages int, dedup bool) error {
	if !dedup {
		messages = 0
	}
	n, err := r.redis.Admin.DBSize(ctx).Result()
	if err == nil {
		names, cursor, err := r.redis.Admin.Scan(ctx, 0, "*?scopes", 1<<20).Result()
		if err != nil || cursor != 0 {
			return fmt.Errorf("scan for scopes: cursor %d, %w", cursor, err)
		}
		n -= int64(len(names))
	}
	if err == nil && n != int64(messages) {
		return fmt.Errorf("there are %d records, want %d", n, messages)
	}
	return err
}

// cost measures what each message costs everybody.
func (r *rig) cost(ctx context.Context, messages int, work func() error) ([]kit.Figure, error) {
	return kit.Servers{{Name: "redis", CPU: r.redis.CPU}, {Name: "nats", CPU: r.nats.CPU}}.Cost(ctx, messages, work)
}
