package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

const bytesPerRecord = "B/record"

// memory measures what finished records occupy, by the fields that they have and by the size of the result. The numbers
// of records differ by powers of two, so that the server's hash tables are equally full.
func memory(ctx context.Context, b *kit.Bench, server *kit.Redis) error {
	fill := func(name string, records int, f fields) kit.Variant {
		return kit.Variant{Name: name, Measure: func(ctx context.Context) ([]kit.Figure, error) {
			return occupied(ctx, server, f, records)
		}}
	}
	rounds := min(b.Rounds, 3) // they hardly differ
	all := fmt.Sprintf("all fields, %d records", b.Records)
	t, err := b.Compare(ctx, fmt.Sprintf("Memory of a finished record without result, name of %d B, by field", nameBytes), rounds,
		fill(all, b.Records, fields{}),
		fill("all fields", b.Records/4, fields{}),
		fill("no trace", b.Records/4, fields{noTrace: true}),
		fill("no fingerprint", b.Records/4, fields{noFingerprint: true}),
		fill("no holder", b.Records/4, fields{noHolder: true}),
		fill("longest holder", b.Records/4, fields{longHolder: true}),
		fill("neither trace nor fingerprint", b.Records/4, fields{noTrace: true, noFingerprint: true}))
	if err != nil {
		return err
	}
	b.Value("bytes_per_record", t.Median(all, bytesPerRecord))

	var sizes []kit.Variant
	for _, size := range []int{0, 16, 64, 256, 1024, 4096} {
		sizes = append(sizes, fill(fmt.Sprintf("%d B", size), b.Records/16, fields{result: noise(size)}))
	}
	_, err = b.Compare(ctx, "Memory of a finished record with all fields, by size of its result", rounds, sizes...)
	return err
}

// noise is a result that no encoding makes smaller.
func noise(size int) []byte {
	r := make([]byte, size)
	for i := range r {
		r[i] = byte(rand.Uint32())
	}
	return r
}

// occupied fills an empty server through the store.
func occupied(ctx context.Context, server *kit.Redis, f fields, records int) ([]kit.Figure, error) {
	if err := server.Flush(ctx); err != nil {
		return nil, err
	}
	if _, err := filled(ctx, server, f, 1); err != nil { // the scripts are loaded, and take memory of their own
		return nil, err
	}
	before, err := server.Memory(ctx)
	if err != nil {
		return nil, err
	}
	y, err := filled(ctx, server, f, records)
	if err != nil {
		return nil, err
	}
	after, err := server.Memory(ctx)
	if err != nil {
		return nil, err
	}
	return []kit.Figure{{Name: bytesPerRecord, Value: float64(after-before) / float64(records)}, y.rate()}, nil
}

// filled adds finished records to a server.
func filled(ctx context.Context, server *kit.Redis, f fields, records int) (y yield, err error) {
	c, err := openStore(server.Addr, f)
	if err != nil {
		return y, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	l := newLoad(256, math.MaxInt64, int64(records))
	if y, err = l.run(ctx, c); err != nil {
		return y, err
	}
	return y, l.sample(ctx, c, y.messages)
}
