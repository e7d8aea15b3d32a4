package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/producer"
)

const rate = "msgs/s"

const (
	partitions  = 12
	payloadSize = 256
	waitLimit   = 2 * time.Minute // how long a measurement may take
)

// A rig is the servers, and how a variant is measured on them.
type rig struct {
	bench *kit.Bench
	redis *kit.Redis
	kafka *kit.Kafka
	fill  *kgo.Client // which makes topics and fills them
	made  int         // topics
}

func startRig(b *kit.Bench) (*rig, error) {
	r := &rig{bench: b}
	var err error
	if r.redis, err = kit.StartRedis(); err != nil {
		return nil, err
	}
	if r.kafka, err = kit.StartKafka(); err != nil {
		return nil, errors.Join(err, r.redis.Stop())
	}
	// A topic that was just made is unknown for a moment.
	reach := []kgo.Opt{kgo.SeedBrokers(r.kafka.Addr), kgo.MetadataMinAge(10 * time.Millisecond), kgo.UnknownTopicRetries(-1)}
	if r.fill, err = kgo.NewClient(reach...); err != nil {
		return nil, errors.Join(err, r.kafka.Stop(), r.redis.Stop())
	}
	return r, nil
}

func (r *rig) stop() error {
	r.fill.Close()
	return errors.Join(r.kafka.Stop(), r.redis.Stop())
}

// A job is one measurement of one variant: a topic with its records, a group of the same name, and a client of Redis.
type task struct {
	*meter
	topic string
	rdb   *redis.Client
	reach []kgo.Opt // of a client: the broker, the group and the topic
}

// A way begins to consume, and returns what ends it when all is committed.
type way func(context.Context, *task) (stop func() error, err error)

// variant measures a way with so many records, times the scale.
func (r *rig) variant(name string, records int, w way) kit.Variant {
	records = max(int(float64(records)*r.bench.Scale), 10*partitions)
	return kit.Variant{Name: name, Measure: func(ctx context.Context) ([]kit.Figure, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, waitLimit, fmt.Errorf("it takes longer than %v", waitLimit))
		defer cancel()
		return r.measure(ctx, records, w)
	}}
}

func (r *rig) measure(ctx context.Context, records int, w way) (figures []kit.Figure, err error) {
	if err := r.redis.Flush(ctx); err != nil {
		return nil, err
	}
	j, err := r.prepare(ctx, records)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.rdb.Close()) }()
	var stop func() error
	err = r.bench.Profiled(func() (err error) {
		figures, err = r.cost(ctx, j, func() error {
			if stop, err = w(ctx, j); err != nil {
				return err
			}
			return j.wait(ctx)
		})
		return err
	})
	if stop != nil {
		err = errors.Join(err, stop())
	}
	if err == nil {
		err = errors.Join(j.exact(), r.committed(ctx, j), r.records(ctx, j))
	}
	_, deleted := kadm.NewClient(r.fill).DeleteTopics(ctx, j.topic)
	return figures, errors.Join(err, deleted)
}

// prepare fills a new topic, all partitions alike.
func (r *rig) prepare(ctx context.Context, records int) (*task, error) {
	r.made++
	topic := fmt.Sprintf("bench-%d-%d", os.Getpid(), r.made)
	made, err := kadm.NewClient(r.fill).CreateTopic(ctx, partitions, 1, nil, topic)
	if err := errors.Join(err, made.Err); err != nil {
		return nil, err
	}
	var failed atomic.Pointer[error]
	for i := range records {
		r.fill.Produce(ctx, &kgo.Record{
			Topic: topic, Key: fmt.Appendf(nil, "k%d", i), Value: make([]byte, payloadSize),
			Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte(producer.NewID())}},
		}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	if err := r.fill.Flush(ctx); err != nil {
		return nil, err
	}
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	return &task{
		meter: newMeter(records), topic: topic, rdb: redis.NewClient(&redis.Options{Addr: r.redis.Addr}),
		reach: []kgo.Opt{kgo.SeedBrokers(r.kafka.Addr), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic)},
	}, nil
}

// committed returns an error unless every offset is committed.
func (r *rig) committed(ctx context.Context, j *task) error {
	offsets, err := kadm.NewClient(r.fill).FetchOffsets(ctx, j.topic)
	if err != nil {
		return err
	}
	var sum int64
	offsets.Each(func(o kadm.OffsetResponse) { sum += o.At })
	if sum != int64(j.messages) {
		return fmt.Errorf("offsets of %d records are committed, want %d", sum, j.messages)
	}
	return nil
}

// records counts what deduplication has left in Redis, beside what it knows of the handler's name.
func (r *rig) records(ctx context.Context, j *task) error {
	want := int64(0)
	if j.dedup {
		want = int64(j.messages)
	}
	n, err := r.redis.Admin.DBSize(ctx).Result()
	if err == nil {
		names, cursor, err := r.redis.Admin.Scan(ctx, 0, "*?scopes", 1<<20).Result()
		if err != nil || cursor != 0 {
			return fmt.Errorf("scan for scopes: cursor %d, %w", cursor, err)
		}
		n -= int64(len(names))
	}
	if err == nil && n != want {
		return fmt.Errorf("there are %d records, want %d", n, want)
	}
	return err
}

// cost measures what each record costs. The rate is from the first record on: how long a group takes to begin is no matter
// of either.
func (r *rig) cost(ctx context.Context, j *task, work func() error) ([]kit.Figure, error) {
	before, err := kit.Used()
	if err != nil {
		return nil, err
	}
	redisBefore, err := r.redis.CPU(ctx)
	if err != nil {
		return nil, err
	}
	if err := work(); err != nil {
		return nil, err
	}
	elapsed := time.Since(*j.begun.Load())
	after, err := kit.Used()
	if err != nil {
		return nil, err
	}
	redisAfter, err := r.redis.CPU(ctx)
	if err != nil {
		return nil, err
	}
	n := float64(j.messages)
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / n }
	return []kit.Figure{
		{Name: rate, Value: n / elapsed.Seconds()},
		{Name: "client µs/msg", Value: micros(after.CPU - before.CPU)},
		{Name: "redis µs/msg", Value: micros(redisAfter - redisBefore)},
		{Name: "allocs/msg", Value: float64(after.Mallocs-before.Mallocs) / n},
	}, nil
}
