package pgstore

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
)

// BenchmarkInbox compares a message in an inbox with the least that an inbox can be: an insert that refuses duplicates,
// in the handler's transaction.
func BenchmarkInbox(b *testing.B) {
	pool := newPool(b, func(c *pgxpool.Config) { c.MaxConns = 24 }) // more than there are handlers at once
	s := newStore(b, pool, Config{})
	mustExec(b, pool, `CREATE TABLE plain (id text PRIMARY KEY)`)
	ctx := context.Background()
	var made atomic.Int64
	inbox := func() error {
		r := request(strconv.FormatInt(made.Add(1), 10))
		a, err := dedupstore.ClaimOne(ctx, s.Inbox(), r)
		if err != nil {
			return err
		}
		return s.Inbox().InTx(ctx, a.Claim, func(ctx context.Context) (dedupstore.Settlement, error) {
			return success, effect(ctx, a.Claim)
		})
	}
	plain := func() error {
		id := strconv.FormatInt(made.Add(1), 10)
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO plain VALUES ($1) ON CONFLICT DO NOTHING`, id); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1, 1)`, id)
			return err
		})
	}
	for name, message := range map[string]func() error{"inbox": inbox, "handwritten": plain} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := message(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"-parallel", func(b *testing.B) {
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := message(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
