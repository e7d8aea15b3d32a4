package pgstore

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

const (
	waitSQL = `SELECT FROM {records} x WHERE x.id = ANY ($1::bytea[]) FOR NO KEY UPDATE`

	forgetSQL = `
WITH copies AS (DELETE FROM {duplicates} d WHERE d.id = $1::bytea),
	beats AS (DELETE FROM {beats} b WHERE b.id = $1::bytea)
DELETE FROM {records} x WHERE x.id = $1::bytea`
)

// Change implements [dedupstore.Inspector].
func (f *form) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	var rec *sqlstore.Row
	var refused error
	err := f.store.inTx(ctx, func(tx transaction) (err error) {
		rec, refused, err = f.store.changeSeen(ctx, tx, seen, c)
		return err
	})
	switch locked := codeOf(err) == codeLocked; { // by a transaction that settles, after its lease
	case err != nil && !locked:
		return f.store.failed("change", err)
	case err == nil && rec != nil:
		return refused
	default: // or somebody is making the record
		records, now, err := f.look(ctx, []dedupstore.Key{seen.Key})
		if err != nil {
			return f.store.failed("change", err)
		}
		found := records[0]
		if locked {
			found.State, found.Until = dedupstore.Running, now.Add(shortly)
		}
		return cmp.Or(dedupstore.Refuse(c, seen, found, now), f.store.failed("change", sqlstore.ErrContended))
	}
}

// changeSeen makes a change of a record, or says why not. Without a record it returns nil.
func (s *Store) changeSeen(
	ctx context.Context, tx transaction, seen dedupstore.Record, c dedupstore.Change,
) (rec *sqlstore.Row, refused, err error) {
	ids := [][]byte{idOf(seen.Key.String())}
	found := map[string]*sqlstore.Row{}
	var now time.Time
	var b pgx.Batch
	b.Queue(beginOwn)
	b.Queue(useIndexes + beBrief + waitForSettling)
	b.Queue(s.sql.wait, ids)
	load(&b, s.sql.load, ids, found, &now)
	if err := tx.send(ctx, &b); err != nil {
		return nil, nil, err
	}
	rec = found[string(ids[0])]
	switch {
	case rec == nil:
		return nil, nil, nil
	case rec.Err != nil:
		return rec, rec.Err, nil
	}
	next, refused := rec.Change(seen, c, now)
	switch {
	case refused != nil:
		return rec, refused, nil
	case next != nil:
		rec.Stored = *next
		return rec, nil, s.save(ctx, tx, []*sqlstore.Row{rec}, now, false, asIs)
	}
	b = pgx.Batch{}
	b.Queue(useIndexes + durability(false))
	b.Queue(s.sql.forget, ids[0])
	b.Queue("commit")
	return rec, nil, tx.send(ctx, &b)
}
