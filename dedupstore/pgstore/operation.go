package pgstore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A text function changes texts for people.
type text = func(string) string

func asIs(s string) string { return s }

// together makes operations in one transaction. If PostgreSQL refuses that, each goes alone: what one of them is
// refused for says nothing of the others.
func together[O any](ctx context.Context, all []O, exec func([]O, text) error, fail func(O, error)) {
	do := func(some []O) error {
		err := exec(some, asIs)
		// the database has another encoding than UTF-8
		if code := codeOf(err); code == codeNoSuchText || code == codeNoTranslation {
			err = exec(some, errtext.ASCII)
		}
		return err
	}
	alone := func(err error) bool { return codeOf(err) != "" || unreadable(err) }
	sqlstore.Together(all, max(1, len(all)), do, alone, func(o O, err error) { fail(o, cmp.Or(ctx.Err(), err)) })
}

// unreadable reports whether a row has a value that this program cannot read.
func unreadable(err error) bool {
	_, is := errors.AsType[pgx.ScanArgError](err)
	return is
}

// A transaction is one of the store's own, of READ COMMITTED: under REPEATABLE READ, which the database may have by
// default, a look after a lock would miss a heartbeat that came since the transaction began.
type transaction struct{ *pgxpool.Conn }

const beginOwn = `BEGIN ISOLATION LEVEL READ COMMITTED`

// send sends statements, in one round trip.
func (t transaction) send(ctx context.Context, b *pgx.Batch) error {
	return t.SendBatch(ctx, b).Close()
}

// inTx does something in a transaction, and again if PostgreSQL refuses it because of others. The function begins and
// commits, by the statements that it sends. After an error the connection is cleaned: the pool would close it.
func (s *Store) inTx(ctx context.Context, do func(transaction) error) error {
	return s.again(ctx, func() error {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		defer rollback(ctx, conn)
		return do(transaction{conn})
	})
}

// load adds a statement that reads records.
func load(b *pgx.Batch, query string, ids [][]byte, found map[string]*sqlstore.Row, now *time.Time) {
	b.Queue(query, ids).Query(func(rows pgx.Rows) error {
		c := newScanner()
		for rows.Next() {
			if err := c.scan(rows); err != nil {
				return err
			}
			found[c.row.ID], *now = new(c.row), c.now
		}
		return rows.Err()
	})
}

// idsInto reads the IDs that a statement returns.
func idsInto(all map[string]bool) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var id []byte
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			all[string(id)] = true
			return nil
		})
		return err
	}
}

// change makes operations under the locks of their records. Those that have to change what others have locked get
// ErrContended. Texts for people are written as the function makes them.
func (s *Store) change(ctx context.Context, ops []sqlstore.Operation, relaxed bool, text text) error {
	ids := idsOf(ops)
	return s.inTx(ctx, func(tx transaction) error {
		found, locked := map[string]*sqlstore.Row{}, map[string]bool{}
		var now time.Time
		var b pgx.Batch
		b.Queue(beginOwn)
		b.Queue(useIndexes + beBrief)
		b.Queue(s.sql.lock, ids).Query(idsInto(locked))
		load(&b, s.sql.load, ids, found, &now) // after the locks: a heartbeat that had one before is seen
		if err := tx.send(ctx, &b); err != nil {
			return err
		}
		changed := sqlstore.Decide(ops, found, locked, now)
		if len(changed) == 0 {
			var end pgx.Batch
			end.Queue("commit")
			_ = tx.send(ctx, &end) // of nothing; else a rollback would outlive ctx
			return nil
		}
		return s.save(ctx, tx, changed, now, relaxed, text)
	})
}

func idsOf(ops []sqlstore.Operation) [][]byte {
	ids := make([][]byte, len(ops))
	for i, op := range ops {
		ids[i] = []byte(op.ID)
	}
	return ids
}

// save writes records, and commits. A relaxed commit does not wait for the disk, unless there is an outcome: a message
// is acknowledged on the strength of it, and if it were forgotten, its run could still commit.
func (s *Store) save(
	ctx context.Context, tx transaction, changed []*sqlstore.Row, now time.Time, relaxed bool, text text,
) error {
	for _, r := range changed {
		relaxed = relaxed && r.State == dedupstore.Running
	}
	var b pgx.Batch
	b.Queue(s.sql.save, saveArgs(changed, now, text)...) // first: until the server has all of it, its idle limit holds
	b.Queue(useIndexes + durability(relaxed))
	b.Queue("commit")
	return tx.send(ctx, &b)
}
