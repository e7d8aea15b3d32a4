package pgstore

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

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
		return dedupstore.InTxOne(ctx, s.Inbox(), a.Claim, func(ctx context.Context) (dedupstore.Settlement, error) {
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

// BenchmarkInspector lists 1,000 failures among many records, and counts them all.
func BenchmarkInspector(b *testing.B) {
	pool := newPool(b)
	s := newStore(b, pool, Config{})
	records := full(3_000_000, 100_000)
	mustExec(b, pool, `
INSERT INTO oncemill_dedup (id, fence, decided, first_at, expires_at, clean_at, attempts, returned, state, kind, owner,
	settled, key, print, trace, holder, reason, took_ms)
SELECT substring(sha256(k.key::bytea) FROM 1 FOR 16), 1700000000000000 + n, 1700000000000000 + n, now(),
	now() + interval '1 day', now() + interval '1 day', 1, 0, 'done',
	CASE WHEN n % ($1 / 1000) = 0 THEN 'failed' ELSE 'succeeded' END, k.owner, ARRAY[k.owner], k.key, '', '',
	'billing-7d9f-x2x9k:417', CASE WHEN n % ($1 / 1000) = 0 THEN 'card refused' END, 12
FROM (SELECT n, 'acme:billing:charge:' || gen_random_uuid() AS key, left(md5(n::text), 26) AS owner
	FROM generate_series(1, $1::bigint) AS n) AS k`, records)
	mustExec(b, pool, `INSERT INTO oncemill_dedup_duplicates
SELECT id, 2, first_at, now() FROM oncemill_dedup WHERE fence % 10 = 0`)
	mustExec(b, pool, `ANALYZE`)
	bench := func(page func(after string) (found, looked int, next string, err error), want int) func(*testing.B) {
		return func(b *testing.B) {
			for b.Loop() {
				var all, found, pages int
				var longest, took time.Duration
				for next := ""; next != "" || pages == 0; pages++ {
					start := time.Now()
					f, l, n, err := page(next)
					if err != nil {
						b.Fatal(err)
					}
					took += time.Since(start)
					longest = max(longest, time.Since(start))
					found, all, next = found+f, all+l, n
				}
				if all != records || found != want {
					b.Fatalf("%d records of %d, %d found, want %d", all, records, found, want)
				}
				b.ReportMetric(float64(longest)/1e6, "ms/longest-page")
				b.ReportMetric(float64(took)/float64(pages)/1e6, "ms/page")
			}
		}
	}
	failed := dedupstore.Filter{Kinds: []dedupstore.Kind{dedupstore.Failed}}
	b.Run("list", bench(func(after string) (found, looked int, next string, err error) {
		page, err := s.List(context.Background(), failed, after)
		return len(page.Records), page.Looked, page.Next, err
	}, 1000))
	b.Run("count", bench(func(after string) (found, looked int, next string, err error) {
		c, err := s.Count(context.Background(), dedupstore.Filter{}, after)
		for _, t := range c.Tallies {
			found += t.Records
		}
		return found, c.Looked, c.Next, err
	}, records))
}
