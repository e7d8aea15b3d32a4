package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/bench/internal/servers"
)

const rate, allCPU = kit.Rate, kit.AllCPU

// A rig is the servers, and how a variant is measured on them.
type rig struct {
	bench    *kit.Bench
	postgres *kit.Postgres
	redis    *kit.Redis
	mariadb  *sql.DB // instead of the others
	giveBack func() error
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
	r.giveBack = func() error { return errors.Join(r.redis.Stop(), r.postgres.Stop()) }
	return r, nil
}

func startMariaDB(b *kit.Bench) (r *rig, err error) {
	r = &rig{bench: b}
	r.mariadb, r.giveBack, err = servers.StartMySQL(connections)
	return r, err
}

func (r *rig) stop() error { return r.giveBack() }

// clients are what a variant works with: on fresh servers, and connected in a way that others do not share.
type clients struct {
	pool    *pgxpool.Pool
	redis   *redis.Client
	mariadb *sql.DB
}

// connections are enough for handlers and for the store beside them.
const connections = 40

// An opening makes the tables of a variant, and the variant.
type opening func(ctx context.Context, c clients) (system, error)

// with opens a variant on empty servers, and closes it.
func (r *rig) with(ctx context.Context, open opening, measure func(system) error) (err error) {
	var c clients
	if r.mariadb != nil {
		err = r.emptyMariaDB(ctx)
		c.mariadb = r.mariadb
	} else {
		err = r.emptyPostgres(ctx)
	}
	if err != nil {
		return err
	}
	if r.redis != nil {
		if err := r.redis.Flush(ctx); err != nil {
			return err
		}
		c.redis = redis.NewClient(&redis.Options{Addr: r.redis.Addr, ContextTimeoutEnabled: true})
		defer func() { err = errors.Join(err, c.redis.Close()) }()
		if c.pool, err = r.postgres.Pool(ctx, connections); err != nil {
			return err
		}
		defer c.pool.Close()
	}
	sys, err := open(ctx, c)
	if err != nil {
		return err
	}
	defer sys.close()
	return measure(sys)
}

func (r *rig) emptyPostgres(ctx context.Context) error {
	for _, statement := range []string{`DROP SCHEMA public CASCADE`, `CREATE SCHEMA public`,
		`CREATE TABLE effects (id text NOT NULL, cents bigint NOT NULL)`} {
		if _, err := r.postgres.Admin.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) emptyMariaDB(ctx context.Context) error {
	for _, statement := range []string{
		`DROP TABLE IF EXISTS effects, inbox, oncemill_dedup, oncemill_dedup_version, oncemill_dedup_scopes`,
		`CREATE TABLE effects (id VARCHAR(64) NOT NULL, cents BIGINT NOT NULL)`,
	} {
		if _, err := r.mariadb.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// mustHave wants each message to have one effect.
func (r *rig) mustHave(ctx context.Context, messages int) (err error) {
	const count = `SELECT count(*), count(DISTINCT id) FROM effects`
	var rows, ids int
	if r.mariadb != nil {
		err = r.mariadb.QueryRowContext(ctx, count).Scan(&rows, &ids)
	} else {
		err = r.postgres.Admin.QueryRow(ctx, count).Scan(&rows, &ids)
	}
	if err == nil && (rows != messages || ids != messages) {
		err = fmt.Errorf("%d effects of %d messages, of %d that were handled", rows, ids, messages)
	}
	return err
}

// settle leaves the servers nothing to do of what was written before.
func (r *rig) settle(ctx context.Context) error {
	if r.mariadb != nil {
		_, err := r.mariadb.ExecContext(ctx, `FLUSH TABLES`)
		return err
	}
	return r.postgres.Settle(ctx)
}

func (r *rig) servers() kit.Servers {
	if r.mariadb != nil {
		cpu := func(context.Context) (time.Duration, error) { return kit.ServersCPU() }
		return kit.Servers{{Name: "mariadb", CPU: cpu}}
	}
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
