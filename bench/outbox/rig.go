package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

const rate, allCPU = kit.Rate, kit.AllCPU

// A rig is the servers, and how a variant is measured on them.
type rig struct {
	bench    *kit.Bench
	postgres *kit.Postgres
	nats     *kit.NATS
	pool     *pgxpool.Pool
}

// connections are enough for whoever writes and whoever relays.
const connections = 48

func startRig(ctx context.Context, b *kit.Bench) (*rig, error) {
	r := &rig{bench: b}
	var err error
	if r.postgres, err = kit.StartPostgres(); err != nil {
		return nil, err
	}
	if r.pool, err = r.postgres.Pool(ctx, connections); err == nil {
		r.nats, err = kit.StartNATS()
	}
	if err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

func (r *rig) stop() error {
	if r.pool != nil {
		r.pool.Close()
	}
	var err error
	if r.nats != nil {
		err = r.nats.Stop()
	}
	return errors.Join(err, r.postgres.Stop())
}

// patience is how long a measurement may take.
const waitLimit = 3 * time.Minute

// variant is a measurement that has to end.
func variant(name string, measure func(ctx context.Context) ([]kit.Figure, error)) kit.Variant {
	return kit.Variant{Name: name, Measure: func(ctx context.Context) ([]kit.Figure, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, waitLimit, fmt.Errorf("it takes longer than %v", waitLimit))
		defer cancel()
		return measure(ctx)
	}}
}

// backlog is how many rows a backlog has at this scale.
func (r *rig) backlog() int { return max(int(backlog*r.bench.Scale), 100) }

// cost measures what each message costs everybody.
func (r *rig) cost(ctx context.Context, messages int, work func() error) ([]kit.Figure, error) {
	servers := kit.Servers{{Name: "postgres", CPU: r.postgres.CPU}, {Name: "nats", CPU: r.nats.CPU}}
	return servers.Cost(ctx, messages, work)
}
