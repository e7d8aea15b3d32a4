package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

const rate, allCPU = kit.Rate, kit.AllCPU

// A rig is the servers, and how a variant is measured on them.
type rig struct {
	bench    *kit.Bench
	postgres *kit.Postgres
	redis    *kit.Redis
}

func startRig(b *kit.Bench) (*rig, error) {
	r := &rig{bench: b}
	var err error
	if r.postgres, err = kit.StartPostgres(); err != nil {
		return nil, err
	}
	if r.redis, err = kit.StartRedis(); err != nil {
		return nil, errors.Join(err, r.postgres.Stop())
	}
	return r, nil
}

func (r *rig) stop() error { return errors.Join(r.redis.Stop(), r.postgres.Stop()) }

// servers are what a variant works on: fresh, and connected to in a way that others do not share.
type servers struct {
	pool  *pgxpool.Pool
	redis *redis.Client
}

// connections are enough for handlers and for the store beside them.
const connections = 40

// An opening makes the tables of a variant, and the variant.
type opening func(ctx context.Context, s servers) (system, error)

// with opens a variant on empty servers, and closes it.
func (r *rig) with(ctx context.Context, open opening, measure func(*pgxpool.Pool, system) error) (err error) {
	if err := r.redis.Flush(ctx); err != nil {
		return err
	}
	for _, statement := range []string{`DROP SCHEMA public CASCADE`, `CREATE SCHEMA public`, `CREATE TABLE effects (id text NOT NULL, cents bigint NOT NULL)`} {
		if _, err := r.postgres.Admin.Exec(ctx, statement); err != nil {
			return err
		}
	}
	s := servers{redis: redis.NewClient(&redis.Options{Addr: r.redis.Addr, ContextTimeoutEnabled: true})}
	defer func() { err = errors.Join(err, s.redis.Close()) }()
	if s.pool, err = r.postgres.Pool(ctx, connections); err != nil {
		return err
	}
	defer s.pool.Close()
	sys, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer sys.close()
	return measure(s.pool, sys)
}

// mustBe wants each message to have one effect.
func mustBe(ctx context.Context, pool *pgxpool.Pool, messages int) error {
	var rows, ids int
	if err := pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT id) FROM effects`).Scan(&rows, &ids); err != nil {
		return err
	}
	if rows != messages || ids != messages {
		return fmt.Errorf("%d effects of %d messages, of %d that were handled", rows, ids, messages)
	}
	return nil
}

func (r *rig) servers() kit.Servers {
	return kit.Servers{{Name: "postgres", CPU: r.postgres.CPU}, {Name: "redis", CPU: r.redis.CPU}}
}

// figures are what a load achieved.
func (y yield) figures() []kit.Figure {
	millis := func(share float64) float64 { return kit.Percentile(y.took, share).Seconds() * 1000 }
	return []kit.Figure{
		{Name: rate, Value: float64(len(y.took)) / y.elapsed.Seconds()},
		{Name: "p50 ms", Value: millis(.5)},
		{Name: "p99 ms", Value: millis(.99)},
	}
}
