package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// sliced is into how many pieces a cell is cut where latency decides. A few goroutines and the server answer each other
// at a pace that changes every few seconds, with the cores they run on and how deep those sleep. Only short pieces that
// lie close together can be compared.
const sliced = 10

// clients compares the store with plain go-redis and with go-redis's own pipelining, from 1 to 256 goroutines.
func clients(ctx context.Context, b *kit.Bench, server *kit.Redis) (err error) {
	compared := []struct {
		name string
		open func(addr string) (client, error)
	}{
		{"AutoPipeline", openAuto},
		{"plain", openPlain},
		{"store", openFull},
	}
	opened := make([]client, len(compared))
	for i, c := range compared {
		if opened[i], err = c.open(server.Addr); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, opened[i].close()) }()
	}
	row := func(name string, goroutines int) string { return fmt.Sprintf("%s, %d", name, goroutines) }
	variants := func(cell time.Duration, goroutines ...int) (list []kit.Variant) {
		for _, g := range goroutines {
			for i, c := range compared {
				list = append(list, kit.Variant{Name: row(c.name, g), Measure: func(ctx context.Context) ([]kit.Figure, error) {
					return throughput(ctx, server, opened[i], newLoad(g, cell, endless))
				}})
			}
		}
		return list
	}
	many, err := b.Compare(ctx, "Claim and settle, by client and goroutines", b.Rounds, variants(b.Cell, 16, 64, 256)...)
	if err != nil {
		return err
	}
	lone, err := b.Compare(ctx, "Claim and settle, one goroutine", b.Rounds*sliced, variants(b.Cell/sliced, 1)...)
	if err != nil {
		return err
	}
	b.Ratio("coalesced_vs_plain_256", many.Ratio(row("store", 256), row("plain", 256), "msgs/s"))
	b.Ratio("coalesced_vs_plain_1", lone.Ratio(row("store", 1), row("plain", 1), "msgs/s"))
	return nil
}

// throughput measures a load on an empty server, after a short one for warming up.
func throughput(ctx context.Context, server *kit.Redis, c client, l load) ([]kit.Figure, error) {
	if err := server.Flush(ctx); err != nil {
		return nil, err
	}
	if _, err := newLoad(l.goroutines, l.duration/5, l.messages/5).run(ctx, c); err != nil {
		return nil, err
	}
	var y yield
	cost, err := costOf(ctx, server, func() (messages int64, err error) {
		y, err = l.run(ctx, c)
		return y.messages, err
	})
	if err != nil {
		return nil, err
	}
	if err := l.sample(ctx, c, y.messages); err != nil {
		return nil, err
	}
	return slices.Concat([]kit.Figure{y.rate()}, cost, y.latency()), nil
}
