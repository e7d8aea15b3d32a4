package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A postgres is a database in PostgreSQL, in a schema of the run's own.
type postgres struct {
	pool   *pgxpool.Pool
	box    *pgoutbox.Outbox
	store  *pgstore.Store
	schema string
}

// place implements database.
func (p *postgres) place(ctx context.Context, pay payment, topic string) (placed bool, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) (err error) {
		if placed, err = insertPayment(ctx, tx, pay); err != nil || !placed {
			return err
		}
		return p.box.In(tx).Publish(ctx, pay.event(topic))
	})
	return placed && err == nil, err
}

// insertPayment waits for others who are placing the same payment, and reports false if they did.
func insertPayment(ctx context.Context, tx pgx.Tx, p payment) (inserted bool, err error) {
	tag, err := tx.Exec(ctx, `INSERT INTO payments (id, account, merchant, cents) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO NOTHING`,
		p.ID, p.Account, p.Merchant, p.Cents)
	if err != nil || tag.RowsAffected() == 1 {
		return err == nil, err
	}
	there := payment{ID: p.ID}
	err = tx.QueryRow(ctx, `SELECT account, merchant, cents FROM payments WHERE id = $1`, p.ID).Scan(&there.Account, &there.Merchant, &there.Cents)
	if err == nil && there != p {
		err = errOther
	}
	return false, err
}

// book implements database. There is nothing in it, and no unique index in its tables, that would notice a second booking:
// that is the inbox's work.
func (p *postgres) book(ctx context.Context, pay payment) error {
	var b pgx.Batch
	b.Queue(`INSERT INTO entries (payment, account, cents) VALUES ($1, $2, -$4::bigint), ($1, $3, $4)`, pay.ID, pay.Account, pay.Merchant, pay.Cents)
	b.Queue(`INSERT INTO balances (account, cents) SELECT a, c FROM (VALUES ($1, -$3::bigint), ($2, $3)) AS v (a, c) ORDER BY a
		ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents`, pay.Account, pay.Merchant, pay.Cents)
	return pgstore.Tx(ctx).SendBatch(ctx, &b).Close()
}

// publish implements database. The outbox finds the transaction in the context.
func (p *postgres) publish(ctx context.Context, m producer.Message) error {
	return p.box.Publish(ctx, m)
}

// openPostgres connects, and makes what is missing.
func openPostgres(ctx context.Context, o options) (database, error) {
	cfg, err := pgxpool.ParseConfig(o.postgres)
	if err != nil {
		return nil, shop.NoServer("postgres", shop.Redacted(o.postgres), err)
	}
	p := &postgres{schema: "oncemill_" + o.run}
	cfg.ConnConfig.RuntimeParams["search_path"] = p.schema // where all statements of the example look for tables
	cfg.MaxConns = max(cfg.MaxConns, 8)
	if p.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, shop.NoServer("postgres", shop.Redacted(o.postgres), err)
	}
	p.box, err = pgoutbox.New(p.pool, pgoutbox.Config{})
	if err == nil {
		p.store, err = pgstore.New(p.pool, pgstore.Config{})
	}
	if err == nil && !o.child {
		err = p.migrate(ctx)
	}
	if err != nil {
		p.pool.Close()
		return nil, shop.NoServer("postgres", shop.Redacted(o.postgres), err)
	}
	return p, nil
}

func (p *postgres) migrate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	err := shop.CreateSchema(ctx, p.pool, p.schema,
		`CREATE TABLE IF NOT EXISTS payments (id text PRIMARY KEY, account text NOT NULL, merchant text NOT NULL, cents bigint NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS entries (payment text NOT NULL, account text NOT NULL, cents bigint NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, cents bigint NOT NULL)`,
	)
	if err != nil {
		return err
	}
	if err := errors.Join(p.box.Migrate(ctx), p.store.Migrate(ctx)); err != nil {
		return err
	}
	_, err = p.store.Check(ctx) // whether the server keeps what it confirms
	return err
}

func (p *postgres) outbox() box                     { return p.box }
func (p *postgres) inbox() dedupstore.Transactor    { return p.store.Inbox() }
func (p *postgres) leased() dedupstore.Store        { return p.store }
func (p *postgres) clean(ctx context.Context) error { return p.store.RunCleaning(ctx) }

// ledger implements database, in one snapshot.
func (p *postgres) ledger(ctx context.Context) (*ledger, error) {
	l := &ledger{payments: map[string]payment{}, balances: map[string]int64{}}
	err := pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		var pay payment
		var e entry
		var account string
		var cents int64
		return errors.Join(
			eachRow(ctx, tx, `SELECT id, account, merchant, cents FROM payments`, []any{&pay.ID, &pay.Account, &pay.Merchant, &pay.Cents}, func() { l.payments[pay.ID] = pay }),
			eachRow(ctx, tx, `SELECT payment, account, cents FROM entries`, []any{&e.payment, &e.account, &e.cents}, func() { l.entries = append(l.entries, e) }),
			eachRow(ctx, tx, `SELECT account, cents FROM balances`, []any{&account, &cents}, func() { l.balances[account] = cents }),
		)
	})
	return l, err
}

func eachRow(ctx context.Context, tx pgx.Tx, query string, into []any, do func()) error {
	rows, err := tx.Query(ctx, query)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, into, func() error {
		do()
		return nil
	})
	return err
}

// close implements database.
func (p *postgres) close(ctx context.Context, remove bool) error {
	defer p.pool.Close()
	if !remove {
		return nil
	}
	_, err := p.pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+pgx.Identifier{p.schema}.Sanitize()+` CASCADE`)
	return err
}
