package shop

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// CreateSchema makes what is missing of a schema and of the tables in it. Processes that begin together take turns: to PostgreSQL,
// IF NOT EXISTS is no promise about what others are making at the same moment.
func CreateSchema(ctx context.Context, pool *pgxpool.Pool, schema string, tables ...string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, schema); err != nil {
			return err
		}
		for _, statement := range append([]string{`CREATE SCHEMA IF NOT EXISTS ` + pgx.Identifier{schema}.Sanitize()}, tables...) {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}
