package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

// A postgres is a database whose outbox is a table beside the orders.
type postgres struct {
	pool    *pgxpool.Pool
	box     *pgoutbox.Outbox
	topic   string
	reserve reserving
	drop    string // the schema to drop at the end; empty: none
}

// place implements placing. It is one transaction: the order, its event, and what may still go wrong.
func (p *postgres) place(ctx context.Context, o shop.Order) (placed bool, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) (err error) {
		if placed, err = insertOrder(ctx, tx, o); err != nil || !placed {
			return err
		}
		if err := p.box.In(tx).Publish(ctx, event(p.topic, o)); err != nil {
			return err
		}
		return p.reserve(ctx, o) // an error takes back the order and its event
	})
	if err != nil {
		return false, err
	}
	p.box.Wake() // the relay of this process publishes now what was committed
	return placed, nil
}

// insertOrder waits for others who are placing the same order, and reports false if they did.
func insertOrder(ctx context.Context, tx pgx.Tx, o shop.Order) (inserted bool, err error) {
	tag, err := tx.Exec(ctx, `INSERT INTO orders (id, cents) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING`, o.ID, o.Cents)
	if err != nil || tag.RowsAffected() == 1 {
		return err == nil, err
	}
	var cents int
	err = tx.QueryRow(ctx, `SELECT cents FROM orders WHERE id = $1`, o.ID).Scan(&cents)
	if err == nil && cents != o.Cents {
		err = errOther
	}
	return false, err
}

// openPostgres connects, and makes what is missing: a schema for the run, the orders and their outbox.
func openPostgres(ctx context.Context, o options, topic string, reserve reserving) (database, error) {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	schema := "oncemill_" + o.run
	cfg, err := pgxpool.ParseConfig(o.postgres)
	if err != nil {
		return nil, noServer("postgres", shop.Redacted(o.postgres), err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = schema // where all statements of the example look for tables
	p := &postgres{topic: topic, reserve: reserve}
	if o.temporary() {
		p.drop = schema
	}
	if p.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, noServer("postgres", shop.Redacted(o.postgres), err)
	}
	if err := p.migrate(ctx, schema); err != nil {
		p.pool.Close()
		return nil, noServer("postgres", shop.Redacted(o.postgres), err)
	}
	return p, nil
}

func (p *postgres) migrate(ctx context.Context, schema string) error {
	err := shop.CreateSchema(ctx, p.pool, schema, `CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, cents bigint NOT NULL)`)
	if err != nil {
		return err
	}
	if p.box, err = pgoutbox.New(p.pool, pgoutbox.Config{}); err != nil {
		return err
	}
	return p.box.Migrate(ctx)
}

// outbox implements database.
func (p *postgres) outbox() box { return p.box }

// orders implements database.
func (p *postgres) orders(ctx context.Context) (map[string]shop.Order, error) {
	rows, err := p.pool.Query(ctx, `SELECT id, cents FROM orders`)
	if err != nil {
		return nil, err
	}
	all := map[string]shop.Order{}
	var o shop.Order
	_, err = pgx.ForEachRow(rows, []any{&o.ID, &o.Cents}, func() error {
		all[o.ID] = o
		return nil
	})
	return all, err
}

// close implements database.
func (p *postgres) close(ctx context.Context) error {
	defer p.pool.Close()
	if p.drop == "" {
		return nil
	}
	_, err := p.pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+pgx.Identifier{p.drop}.Sanitize()+` CASCADE`)
	if err != nil {
		return errors.Join(errors.New("drop the schema of the run"), err)
	}
	return nil
}
