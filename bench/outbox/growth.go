package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// growth compares a backlog beside many published rows with one beside none.
func growth(ctx context.Context, b *kit.Bench, r *rig) (err error) {
	none, many := r.ours(byDefault), r.ours(byDefault)
	many.table += "_many"
	for _, s := range []*ours{none, many} {
		if err := s.install(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.uninstall(context.WithoutCancel(ctx))) }()
	}
	if err := many.retain(ctx, b.Records); err != nil {
		return err
	}
	title := fmt.Sprintf("A backlog of %d rows, beside %d published rows and beside none", r.backlog(), b.Records)
	t, err := b.Compare(ctx, title, b.Rounds, r.beside(noneRetained, none), r.beside(manyRetained, many))
	if err != nil {
		return err
	}
	if t.Has(noneRetained, manyRetained) {
		b.Aim("drain_1m_vs_0", t.Ratio(manyRetained, noneRetained, rate), .9, 0)
	}
	return nil
}

// retain fills the outbox with rows that were published within the last hours.
func (o *ours) retain(ctx context.Context, rows int) error {
	_, err := o.pool.Exec(ctx, `
INSERT INTO `+o.table+` (number, id, topic, payload, written_at, published_at)
SELECT hashint8extended(i, 0), 'retained-' || i, $2::text, convert_to($3::text, 'UTF8'),
	clock_timestamp() - (i + 1) * interval '50 milliseconds', clock_timestamp() - i * interval '50 milliseconds'
FROM generate_series(1, $1::bigint) AS i`, rows, topic, string(payload(0)))
	return err
}

// beside is draining, but the tables are there already, and what was published is removed afterwards.
func (r *rig) beside(name string, s *ours) kit.Variant {
	return variant(name, func(ctx context.Context) ([]kit.Figure, error) {
		if err := s.forget(ctx); err != nil {
			return nil, err
		}
		if err := fill(ctx, s, r.backlog()); err != nil {
			return nil, err
		}
		return r.empty(ctx, s, r.backlog())
	})
}

// forget removes all rows that were not retained on purpose.
func (o *ours) forget(ctx context.Context) error {
	for _, statement := range []string{"DELETE FROM " + o.table + " WHERE id NOT LIKE 'retained-%'", "VACUUM " + o.table} {
		if _, err := o.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
