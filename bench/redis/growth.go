package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// growth compares the latency of claims on two servers, one full and one nearly empty.
func growth(ctx context.Context, b *kit.Bench) (err error) {
	var variants []kit.Variant
	row := func(records int) string { return fmt.Sprintf("%d records", records) }
	few, many := b.Records/100, 3*b.Records
	for _, records := range []int{few, many} {
		server, startErr := kit.StartRedis()
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		for done := 0; done < records; {
			part := min(250_000, records-done)
			y, err := filled(ctx, server, fields{}, part)
			if err != nil {
				return err
			}
			done += part
			b.Progress("filling: %d of %d records, %.0f msgs/s", done, records, y.rate().Value)
		}
		c, openErr := openFull(server.Addr)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, c.close()) }()
		variants = append(variants, kit.Variant{Name: row(records), Measure: func(ctx context.Context) ([]kit.Figure, error) {
			return probe(ctx, server, c, newLoad(16, b.Cell/sliced, endless))
		}})
	}
	t, err := b.Compare(ctx, "Latency of claims at 16 goroutines, by what the server holds", b.Rounds*sliced, variants...)
	if err != nil {
		return err
	}
	b.Ratio("claim_p99_3m_vs_10k", t.Ratio(row(many), row(few), p99))
	return nil
}

// probe runs a load on a server that keeps its records, and removes those of the load again.
func probe(ctx context.Context, server *kit.Redis, c client, l load) ([]kit.Figure, error) {
	y, err := l.run(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := l.sample(ctx, c, y.messages); err != nil {
		return nil, err
	}
	return append([]kit.Figure{y.rate()}, y.latency()...), remove(ctx, server.Admin, l.cell, y.messages)
}

// remove deletes the records of the first messages of a load.
func remove(ctx context.Context, rdb *redis.Client, cell int, messages int64) error {
	var names []string
	for n := range messages {
		names = append(names, numbered(cell, n).name())
		if len(names) < 1000 && n < messages-1 {
			continue
		}
		removed, err := rdb.Del(ctx, names...).Result()
		if err == nil && removed != int64(len(names)) {
			err = fmt.Errorf("%d of %d records were not there", int64(len(names))-removed, len(names))
		}
		if err != nil {
			return err
		}
		names = names[:0]
	}
	return nil
}
