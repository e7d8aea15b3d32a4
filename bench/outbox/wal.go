package main

import (
	"context"
	"errors"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/outbox"
)

const walAll = "all bytes/msg" // without vacuum, which comes when PostgreSQL likes

// wal measures what a message costs in write-ahead log, until the table is empty again.
func wal(ctx context.Context, b *kit.Bench, r *rig) error {
	t, err := b.Compare(ctx, "Write-ahead log of a message", b.Rounds,
		variant(removed, func(ctx context.Context) ([]kit.Figure, error) { return r.logged(ctx, r.ours(outbox.DeleteAtOnce)) }),
		variant(retained, func(ctx context.Context) ([]kit.Figure, error) { return r.logged(ctx, r.ours(byDefault)) }),
	)
	if err != nil {
		return err
	}
	if t.Has(removed) {
		b.Limit("wal_bytes_per_message", t.Median(removed, walAll), 700)
	}
	return nil
}

func (r *rig) logged(ctx context.Context, s *ours) (figures []kit.Figure, err error) {
	if err := s.install(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.uninstall(context.WithoutCancel(ctx))) }()
	if err := r.postgres.Settle(ctx); err != nil {
		return nil, err
	}
	messages := r.backlog()
	var sum float64
	for _, step := range []struct {
		name string
		work func() error
	}{
		{"insert bytes/msg", func() error { return fill(ctx, s, messages) }},
		{"relay bytes/msg", func() error { return r.publishAll(ctx, s, messages) }},
		{"cleanup bytes/msg", func() error { return s.clean(ctx) }},
		{vacuuming, func() error { return s.vacuum(ctx) }},
	} {
		before, err := r.postgres.WAL(ctx)
		if err != nil {
			return nil, err
		}
		if err := step.work(); err != nil {
			return nil, err
		}
		after, err := r.postgres.WAL(ctx)
		if err != nil {
			return nil, err
		}
		each := float64(after-before) / float64(messages)
		if step.name != vacuuming {
			sum += each
		}
		figures = append(figures, kit.Figure{Name: step.name, Value: each})
	}
	return append([]kit.Figure{{Name: walAll, Value: sum}}, figures...), nil
}

const vacuuming = "vacuum bytes/msg"

func (o *ours) vacuum(ctx context.Context) error {
	_, err := o.pool.Exec(ctx, "VACUUM "+o.table)
	return err
}

// clean removes what was published.
func (o *ours) clean(ctx context.Context) error {
	const batch = 1000
	for n := batch; n == batch; {
		var err error
		if n, err = o.box.Clean(ctx, 0, batch); err != nil {
			return err
		}
	}
	return nil
}
