package mysqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A claiming is a request on its way.
type claiming struct {
	*dedupstore.Request
	id, key string
	result  *dedupstore.ClaimResult
	absent  bool // there was no record when it was to be changed
}

func newClaiming(r *dedupstore.Request, result *dedupstore.ClaimResult) *claiming {
	key := r.Key.String()
	return &claiming{Request: r, id: sqlstore.IDOf(key), key: key, result: result}
}

// Claim implements [dedupstore.Store]. In MySQL it waits for a transaction that makes the record.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	unusable := s.usable(ctx)
	var all []*claiming
	for i := range requests {
		if results[i].Err = cmp.Or(requests[i].Validate(), unusable); results[i].Err == nil {
			all = append(all, newClaiming(&requests[i], &results[i]))
		}
	}
	claim := func(batch []*claiming) error { return s.claim(ctx, batch) }
	sqlstore.Together(all, maxBatch, claim, alone,
		func(c *claiming, err error) { *c.result = dedupstore.ClaimResult{Err: s.failed("claim", err)} })
	return results
}

// makingFor is how long claims wait for records that others are making: most of these are other claims, and then the
// answer tells more. A first run takes as long as its handler.
const makingFor = 50 * time.Millisecond

// claim answers requests.
func (s *Store) claim(ctx context.Context, batch []*claiming) error {
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: makingFor / 4}
	for until := time.Now().Add(makingFor); ; {
		locked, err := s.claimFree(ctx, batch)
		if err != nil || len(locked) == 0 {
			return err
		}
		if time.Now().After(until) || !pace.Sleep(ctx, pace.Jitter(pauses.Next())) {
			for _, c := range locked {
				c.result.Answer = dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running, Wait: c.Lease}
			}
			return nil
		}
		batch = locked
	}
}

// claimFree answers requests, but not those whose records somebody else is making: it returns them. It looks before it
// inserts, because an insert would lock a record that is there. Only requests that change a record lock it, and look
// again. If an insert meets a lock, halves of the batch find out where.
func (s *Store) claimFree(ctx context.Context, batch []*claiming) (locked []*claiming, err error) {
	var made time.Time // when records were made here
	for {
		ids := make([]string, len(batch))
		for i, c := range batch {
			ids[i] = c.id
		}
		found, now, err := s.load(ctx, s.db, ids, "")
		if err != nil {
			return nil, err
		}
		changing := look(batch, found, made, now)
		if err := s.change(ctx, changing); err != nil {
			return nil, err
		}
		var absent []*claiming
		for _, c := range batch {
			switch {
			case errors.Is(c.result.Err, sqlstore.ErrContended):
				*c.result = dedupstore.ClaimResult{Answer: sqlstore.Contended}
			case c.result.Err != nil:
				c.result.Answer = dedupstore.Answer{}
			case c.absent:
				absent = append(absent, c)
			}
		}
		if batch = absent; len(batch) == 0 {
			return nil, nil
		}
		var n int
		err = sqlstore.Again(ctx, refuses, func() (err error) {
			made, n, err = s.insert(ctx, s.db, batch)
			return err
		})
		switch half := len(batch) / 2; {
		case number(err) == errLockTimeout && half > 0:
			some, err := s.claimFree(ctx, batch[:half])
			others, failure := s.claimFree(ctx, batch[half:])
			return append(some, others...), errors.Join(err, failure)
		case number(err) == errLockTimeout:
			return batch, nil
		case err != nil:
			return nil, err
		case n == len(batch):
			for _, c := range batch {
				_, c.result.Answer = dedupstore.Stored{}.Claim(*c.Request, made)
			}
			return nil, nil
		}
	}
}

// look answers the requests that change nothing, and notes which have no record. It returns the others. Made is when
// records were made for some of the requests; zero: none were.
func look(batch []*claiming, found map[string]*sqlstore.Row, made, now time.Time) (changing []sqlstore.Operation) {
	var ops []sqlstore.Operation
	fresh := map[string]bool{}
	for _, c := range batch {
		rec := found[c.id]
		if rec != nil && rec.Owner == c.Owner && rec.First.Equal(made) && !fresh[c.id] {
			fresh[c.id], c.absent, c.result.Err = true, false, nil
			_, c.result.Answer = dedupstore.Stored{}.Claim(*c.Request, made)
			continue
		}
		ops = append(ops, sqlstore.Operation{ID: c.id, Key: c.key, Lease: c.Lease, Apply: c.apply, Err: &c.result.Err})
	}
	return sqlstore.Changing(ops, found, now)
}

// apply claims a record that is locked, unless it is gone meanwhile: nothing locks a record that is not there.
func (c *claiming) apply(rec dedupstore.Stored, now time.Time) (next *dedupstore.Stored, err error) {
	if c.absent = rec.State == ""; c.absent {
		return nil, nil
	}
	next, c.result.Answer = rec.Claim(*c.Request, now)
	c.result.Answer.Outcome = c.result.Answer.Outcome.Clone()
	return next, nil
}

const insertColumns = "id, record_key, state, owner, fence, attempts, lease_until, expires_at, scheme, fingerprint, " +
	"trace, first_at, claimed_at, holder"

// insert makes the records of keys that have none. It goes by the order of the keys, so that two inserts never wait for
// each other in a circle. It returns when it did, by the server's clock, and how many. LAST_INSERT_ID(x) is how a
// statement that returns no rows returns x. If another transaction is making one of the records, MariaDB ends the
// statement with errLockTimeout at once, MySQL after innodb_lock_wait_timeout.
func (s *Store) insert(
	ctx context.Context, q sqlstore.Querier, batch []*claiming,
) (made time.Time, n int, err error) {
	order := slices.Clone(batch)
	slices.SortStableFunc(order, func(a, b *claiming) int { return strings.Compare(a.id, b.id) })
	var b []byte
	if s.mariadb.Load() {
		b = append(b, noWait...)
	}
	b = append(b, "INSERT IGNORE INTO `"+s.config.Table+"` ("+insertColumns+") VALUES "...)
	const now = sqlstore.MySQLNow
	later := func(d time.Duration) sqlstore.Expr {
		return sqlstore.Expr(fmt.Sprintf("%s + %d", now, sqlstore.Micros(d)))
	}
	const fence = "LAST_INSERT_ID(" + now + ")"
	for i, c := range order {
		if i > 0 {
			b = append(b, ',')
		}
		b = sqlstore.AppendRow(b, c.id, c.key, string(dedupstore.Running), c.Owner, fence, 1,
			later(c.Lease), later(c.Lease+c.Retention), c.Fingerprint.Scheme, c.Fingerprint.Sum, c.Trace, now, now,
			c.Holder)
	}
	result, err := q.ExecContext(ctx, string(b))
	if err != nil {
		return made, 0, err
	}
	id, err := result.LastInsertId()
	if err != nil {
		return made, 0, err
	}
	changed, err := result.RowsAffected()
	return time.UnixMicro(id), int(changed), err
}
