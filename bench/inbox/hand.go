package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// An execer is a transaction, or a pool for a statement that is one by itself.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// effect is the statement of every handler.
func effect(ctx context.Context, e execer, id string) error {
	_, err := e.Exec(ctx, `INSERT INTO effects (id, cents) VALUES ($1, $2)`, id, 1200)
	return err
}

// A handWritten inbox knows IDs, and nothing else: no owners, no outcomes, no attempts, no content, no end of its table.
type handWritten struct{ pool *pgxpool.Pool }

func openByHand(ctx context.Context, c clients) (system, error) {
	_, err := c.pool.Exec(ctx, `CREATE TABLE inbox (id text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())`)
	return handWritten{c.pool}, err
}

func (h handWritten) handle(ctx context.Context, id string, _ []byte) error {
	return pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO inbox (id) VALUES ($1) ON CONFLICT DO NOTHING`, id)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return effect(ctx, tx, id)
	})
}

func (handWritten) close() {}
