package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// TakesFirst implements [dedupstore.Transactor]. In MySQL others would wait for the lock of a record that is being
// made. Before the first operation the store does not know the server.
func (s inbox) TakesFirst() bool { return s.mariadb.Load() }

// noWait begins a statement that does not wait for what others have locked: it ends with errLockTimeout. In MySQL a
// second is the shortest wait.
const noWait = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "

// unchained ends a statement about the transaction's own records.
const unchained = " AND NOT " + chained

var (
	// errApart says that the transaction has to begin again without some first runs.
	errApart = errors.New("mysqlstore: some first runs cannot take part")

	// errGone says that a transaction has ended before its run.
	errGone = errors.New("mysqlstore: the transaction's records are gone")
)

// most is how many records one statement makes.
const most = 64

// siftFirsts leaves out first runs that have records, if a transaction met some.
func (c *calling) siftFirsts(ctx context.Context, t *sqlstore.Transaction) error {
	left := slices.DeleteFunc(slices.Clone(t.Firsts), func(m *sqlstore.Member) bool { return c.apart[m] })
	if c.sift && len(left) > 0 {
		found, _, err := c.read(ctx, c.db, left, false)
		if err != nil {
			return err
		}
		left = slices.DeleteFunc(left, func(m *sqlstore.Member) bool {
			c.apart[m] = found[m.ID] != nil
			return c.apart[m]
		})
	}
	if len(left) == 0 && len(t.Claimed) == 0 {
		return sqlstore.ErrTaken
	}
	return nil
}

// makeFirsts inserts running records for first runs. Nobody sees them before the commit. It reports whether it has
// inserted any.
func (r *run) makeFirsts(ctx context.Context) (made bool, err error) {
	var left []*sqlstore.Member
	seen := map[string]bool{}
	for _, m := range r.Firsts {
		if r.apart[m] = r.apart[m] || seen[m.ID]; !r.apart[m] {
			seen[m.ID] = true
			left = append(left, m)
		}
	}
	for some := range slices.Chunk(left, most) {
		if err := r.makeSome(ctx, some); err != nil {
			return false, err
		}
	}
	missing := func(m *sqlstore.Member) bool { return m.Claim.Fence == 0 }
	switch {
	case !slices.ContainsFunc(left, missing):
		return len(left) > 0, nil
	case len(r.Members) == 1:
		return false, sqlstore.ErrTaken
	}
	r.sift = true // begin again, because this transaction has locked the records that it has met
	return false, errApart
}

// makeSome makes the records of first runs in one statement. If somebody else has one of them locked, it finds out
// which.
func (r *run) makeSome(ctx context.Context, some []*sqlstore.Member) error {
	batch := make([]*claiming, len(some))
	for i, m := range some {
		batch[i] = newClaiming(m.First, nil)
	}
	sent := time.Now()
	made, n, err := r.insert(ctx, r.tx, batch)
	switch {
	case number(err) == errLockTimeout && len(some) == 1:
		r.apart[some[0]] = true
		return nil
	case number(err) == errLockTimeout:
		half := len(some) / 2
		if err := r.makeSome(ctx, some[:half]); err != nil {
			return err
		}
		return r.makeSome(ctx, some[half:])
	case err != nil || n < len(some):
		return err
	}
	r.at = func() time.Time { return made.Add(time.Since(sent)) }
	for _, m := range some {
		next, answer := dedupstore.Stored{}.Claim(*m.First, made)
		m.Claim, m.Row = answer.Claim, &sqlstore.Row{ID: m.ID, Key: m.Key, Stored: *next}
	}
	return nil
}

// isThere looks for the record that the transaction has made for a first run.
func (r *run) isThere(ctx context.Context, m *sqlstore.Member) error {
	b := fmt.Appendf(nil, noWait+"UPDATE `%s` SET fence = LAST_INSERT_ID(fence) WHERE id = ", r.config.Table)
	b = append(sqlstore.AppendRow(b, m.ID), " AND owner = "...)
	b = append(sqlstore.AppendRow(b, m.Claim.Owner), unchained...)
	result, err := r.tx.ExecContext(ctx, string(b))
	if err != nil {
		return gone(err)
	}
	if fence, err := result.LastInsertId(); err != nil || uint64(fence) == m.Claim.Fence {
		return err
	}
	return errGone
}

// gone is errGone if the server refuses to write because something has committed.
func gone(err error) error {
	if number(err) == errReadOnlyTx {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

// finishFirsts writes the outcomes of first runs, if there are any. It returns errGone if their records are gone.
func (r *run) finishFirsts(ctx context.Context) (finished bool, err error) {
	all := slices.DeleteFunc(slices.Clone(r.Firsts), func(m *sqlstore.Member) bool { return m.Claim.Fence == 0 })
	if len(all) == 0 {
		return false, nil
	}
	if !slices.ContainsFunc(all, func(m *sqlstore.Member) bool { return !alikePlain(m.Finish, all[0].Finish) }) {
		for some := range slices.Chunk(all, most) {
			if err := r.finishAlike(ctx, some); err != nil {
				return true, gone(err)
			}
		}
		return true, nil
	}
	for _, m := range all {
		err := r.finish(ctx, m)
		if errors.Is(err, dedupstore.ErrClaimLost) {
			return true, errGone
		}
		if err != nil {
			return true, gone(err)
		}
	}
	return true, nil
}

// alikePlain reports whether settlements say the same, and only that runs have succeeded.
func alikePlain(f, of dedupstore.Finish) bool {
	o := &f.Outcome
	return o.Kind == dedupstore.Succeeded && len(o.Result)+len(o.Reason)+len(o.Produced) == 0 && !o.Exhausted &&
		!o.Truncated && f.Retention == of.Retention && f.Took == of.Took
}

// finishAlike writes one plain outcome into the records of first runs. It must not read others' records, which may be
// locked.
func (r *run) finishAlike(ctx context.Context, some []*sqlstore.Member) error {
	one := some[0]
	next, err := one.Row.Settle(one.Claim, one.Finish, r.at())
	if err != nil {
		return err
	}
	ids, fences := make([]any, len(some)), make([]any, 0, 1)
	for i, m := range some {
		ids[i] = m.ID
		if !slices.Contains(fences, any(m.Claim.Fence)) { // nearly always one statement has made all
			fences = append(fences, m.Claim.Fence)
		}
	}
	b := fmt.Appendf(nil, noWait+"UPDATE `%s` FORCE INDEX (PRIMARY) SET settled = owner, decided = fence, "+
		"lease_until = 0, ended_at = %d, ", r.config.Table, sqlstore.MicrosAt(next.Ended))
	if next.Expires.After(one.Row.Expires) || one.Finish.Retention != one.Claim.Retention {
		b = fmt.Appendf(b, "expires_at = %d, ", sqlstore.MicrosAt(next.Expires)) // else it stays: it is indexed
	}
	b = append(b, "state = "...)
	b = append(sqlstore.AppendRow(b, string(next.State)), ", kind = "...)
	b = append(sqlstore.AppendRow(b, string(next.Outcome.Kind)), " WHERE id IN "...)
	b = append(sqlstore.AppendRow(b, ids...), " AND fence IN "...)
	b = append(sqlstore.AppendRow(b, fences...), " AND state = "...)
	b = append(sqlstore.AppendRow(b, string(dedupstore.Running)), unchained...)
	if n, err := sqlstore.Change(ctx, r.tx, string(b)); n == len(some) || err != nil {
		return err
	}
	return errGone
}
