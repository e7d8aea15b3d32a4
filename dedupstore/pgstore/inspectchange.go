package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
)

// errRestless says that a record was another one after each look.
var errRestless = errors.New("the record changes all the time")

// Change implements [dedupstore.Inspector]. It looks, decides, and writes if the record is still as it was seen.
func (f *form) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	for range maxTries {
		records, now, err := f.look(ctx, []dedupstore.Key{seen.Key})
		if err != nil {
			return f.store.failed("change", err)
		}
		found := records[0]
		if err := dedupstore.Refuse(c, seen, found, now); err != nil {
			return err
		}
		done, err := f.store.change(ctx, found, c)
		switch {
		case codeOf(err) == codeLocked: // by a transaction that settles, after its lease
			found.State, found.Until = dedupstore.Running, now.Add(shortly)
			return dedupstore.Refuse(c, seen, found, now)
		case err != nil:
			return f.store.failed("change", err)
		case done:
			return nil
		}
	}
	return f.store.failed("change", errRestless)
}

// change reports false if the record is not as it was found.
func (s *Store) change(ctx context.Context, found dedupstore.Record, c dedupstore.Change) (done bool, err error) {
	step, o := "", dedupstore.Outcome{}
	switch c := c.(type) {
	case dedupstore.Forget:
		step = "forget"
	case dedupstore.Rerun:
		step = "rerun"
	case dedupstore.Complete:
		step, o = "complete", c.Outcome
	}
	args := []any{
		idOf(found.Key.String()), int64(found.Fence), string(found.State), string(found.Outcome.Kind), step,
		string(o.Kind), o.Exhausted, o.Truncated, encodeText(o.Reason), o.Result,
	}
	err = s.again(ctx, func() error {
		return s.committed(ctx, s.sql.change, args, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&done}, func() error { return nil })
			return err
		})
	})
	return done, err
}
