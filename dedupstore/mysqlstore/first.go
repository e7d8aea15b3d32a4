package mysqlstore

import (
	"context"
	"database/sql"
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
	// errTaken says that a claim has to find out what there is.
	errTaken = errors.New("mysqlstore: somebody else has the key, or the commit got no answer")

	// errApart says that the transaction has to begin again without some first runs.
	errApart = errors.New("mysqlstore: some first runs cannot take part")

	// errGone says that a transaction has ended before its run.
	errGone = errors.New("mysqlstore: the transaction's records are gone")
)

// most is how many records one statement makes.
const most = 64

// answers are the answers of Claim to first runs that do not take part.
func (s *Store) answers(ctx context.Context, members []member) ([]dedupstore.Answer, error) {
	answers := make([]dedupstore.Answer, len(members))
	var places []int
	var requests []dedupstore.Request
	for i, m := range members {
		if m.claim.Fence == 0 {
			places, requests = append(places, i), append(requests, *m.first.Request)
		}
	}
	var failure error
	for n, result := range s.Claim(ctx, requests) {
		if result.Err != nil {
			failure, result.Answer = result.Err, contended
		}
		answers[places[n]] = result.Answer
	}
	return answers, failure
}

// siftFirsts leaves out first runs that have records, if a transaction met some.
func (s *Store) siftFirsts(ctx context.Context, t *transaction) error {
	var left []*member
	for _, m := range t.firsts {
		if m.claim.Fence = 0; !m.apart {
			left = append(left, m)
		}
	}
	if t.sift && len(left) > 0 {
		ids := make([]string, len(left))
		for i, m := range left {
			ids[i] = m.first.id
		}
		found, _, err := s.load(ctx, s.db, ids, "")
		if err != nil {
			return s.failed("look at the records", err)
		}
		left = slices.DeleteFunc(left, func(m *member) bool {
			m.apart = found[m.first.id] != nil
			return m.apart
		})
	}
	if len(left) == 0 && len(t.claims) == 0 {
		return errTaken
	}
	return nil
}

// makeFirsts inserts running records for first runs. Nobody sees them before the commit. It reports whether it has
// inserted any.
func (s *Store) makeFirsts(ctx context.Context, tx *sql.Tx, t *transaction) (made bool, err error) {
	var left []*member
	seen := map[string]bool{}
	for _, m := range t.firsts {
		if m.apart = m.apart || seen[m.first.id]; !m.apart {
			seen[m.first.id] = true
			left = append(left, m)
		}
	}
	for some := range slices.Chunk(left, most) {
		if err := s.makeSome(ctx, tx, t, some); err != nil {
			return false, err
		}
	}
	switch missing := slices.ContainsFunc(left, func(m *member) bool { return m.claim.Fence == 0 }); {
	case missing && len(t.members) == 1:
		return false, errTaken
	case missing: // begin again, because this transaction has locked the records that it has met
		t.sift = true
		return false, errApart
	}
	return len(left) > 0, nil
}

// makeSome makes the records of first runs in one statement. If somebody else has one of them locked, it finds out
// which.
func (s *Store) makeSome(ctx context.Context, tx *sql.Tx, t *transaction, some []*member) error {
	batch := make([]*claiming, len(some))
	for i, m := range some {
		batch[i] = m.first
	}
	sent := time.Now()
	made, n, err := s.insert(ctx, tx, batch)
	switch {
	case number(err) == errLockTimeout && len(some) == 1:
		some[0].apart = true
		return nil
	case number(err) == errLockTimeout:
		half := len(some) / 2
		if err := s.makeSome(ctx, tx, t, some[:half]); err != nil {
			return err
		}
		return s.makeSome(ctx, tx, t, some[half:])
	case err != nil || n < len(some):
		return err
	}
	t.at = func() time.Time { return made.Add(time.Since(sent)) }
	for _, m := range some {
		next, answer := dedupstore.Stored{}.Claim(*m.first.Request, made)
		m.claim, m.record = answer.Claim, &row{id: m.first.id, key: m.first.key, Stored: *next}
	}
	return nil
}

// isThere looks for the record that the transaction has made for a first run.
func (s *Store) isThere(ctx context.Context, tx *sql.Tx, m *member) error {
	b := fmt.Appendf(nil, noWait+"UPDATE `%s` SET fence = LAST_INSERT_ID(fence) WHERE id = ", s.config.Table)
	b = append(sqlstore.AppendRow(b, m.first.id), " AND owner = "...)
	b = append(sqlstore.AppendRow(b, m.claim.Owner), unchained...)
	result, err := tx.ExecContext(ctx, string(b))
	if err != nil {
		return gone(err)
	}
	if fence, err := result.LastInsertId(); err != nil || uint64(fence) == m.claim.Fence {
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
func (s *Store) finishFirsts(ctx context.Context, tx *sql.Tx, t *transaction) (finished bool, err error) {
	var all []*member
	alike := true
	for _, m := range t.firsts {
		if m.claim.Fence != 0 {
			all = append(all, m)
			alike = alike && alikePlain(m.finish, all[0].finish)
		}
	}
	switch {
	case len(all) == 0:
		return false, nil
	case alike:
		for some := range slices.Chunk(all, most) {
			if err := s.finishAlike(ctx, tx, some, t.at()); err != nil {
				return true, gone(err)
			}
		}
		return true, nil
	}
	for _, m := range all {
		err := s.finish(ctx, tx, m, t.at())
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
func alikePlain(a, b dedupstore.Settlement) bool {
	f, of := a.(dedupstore.Finish), b.(dedupstore.Finish)
	o := &f.Outcome
	return o.Kind == dedupstore.Succeeded && len(o.Result)+len(o.Reason)+len(o.Produced) == 0 && !o.Exhausted &&
		!o.Truncated && f.Retention == of.Retention && f.Took == of.Took
}

// finishAlike writes one plain outcome into the records of first runs. It must not read others' records, which may be
// locked.
func (s *Store) finishAlike(ctx context.Context, tx *sql.Tx, some []*member, now time.Time) error {
	stands := some[0]
	next, err := stands.record.Settle(stands.claim, stands.finish, now)
	if err != nil {
		return err
	}
	ids, fences := make([]any, len(some)), make([]any, 0, 1)
	for i, m := range some {
		ids[i] = m.first.id
		if !slices.Contains(fences, any(m.claim.Fence)) { // nearly always one statement has made all
			fences = append(fences, m.claim.Fence)
		}
	}
	b := fmt.Appendf(nil, noWait+"UPDATE `%s` FORCE INDEX (PRIMARY) SET settled = owner, decided = fence, "+
		"lease_until = 0, ended_at = %d, ", s.config.Table, sqlstore.MicrosAt(next.Ended))
	if next.Expires.After(stands.record.Expires) || stands.finish.(dedupstore.Finish).Retention != stands.claim.Retention {
		b = fmt.Appendf(b, "expires_at = %d, ", sqlstore.MicrosAt(next.Expires)) // else it stays: it is indexed
	}
	b = append(b, "state = "...)
	b = append(sqlstore.AppendRow(b, string(next.State)), ", kind = "...)
	b = append(sqlstore.AppendRow(b, string(next.Outcome.Kind)), " WHERE id IN "...)
	b = append(sqlstore.AppendRow(b, ids...), " AND fence IN "...)
	b = append(sqlstore.AppendRow(b, fences...), " AND state = "...)
	b = append(sqlstore.AppendRow(b, string(dedupstore.Running)), unchained...)
	if n, err := sqlstore.Change(ctx, tx, string(b)); n == len(some) || err != nil {
		return err
	}
	return errGone
}
