package pgstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A claiming is a request on its way.
type claiming struct {
	*dedupstore.Request
	id                 []byte
	key, print, holder string
	name               string // of the key and its owner, who may claim several

	result *dedupstore.ClaimResult
	done   bool // there is a result
	absent bool // no record has been seen
}

func newClaiming(r *dedupstore.Request, result *dedupstore.ClaimResult) *claiming {
	key := r.Key.String()
	c := &claiming{
		Request: r, id: idOf(key), key: key, print: printOf(r.Fingerprint), holder: r.Holder,
		result: result, absent: true,
	}
	c.name = string(c.id) + r.Owner
	return c
}

// answer ends a request.
func (c *claiming) answer(a dedupstore.Answer, err error) {
	*c.result, c.done = dedupstore.ClaimResult{Answer: a, Err: err}, true
	if err != nil {
		c.result.Answer = dedupstore.Answer{}
	}
}

// apply decides a claim by the record that there is. The answer has no slices of the record, which may have others.
func (c *claiming) apply(rec dedupstore.Stored, now time.Time) (next *dedupstore.Stored, err error) {
	if rec.State == "" {
		return &rec, nil // to be made
	}
	next, c.result.Answer = rec.Claim(*c.Request, now)
	c.result.Answer.Outcome = c.result.Answer.Outcome.Clone()
	return next, nil
}

// operations are claims as the store decides them.
func operations(claims []*claiming) []sqlstore.Operation {
	ops := make([]sqlstore.Operation, len(claims))
	for i, c := range claims {
		ops[i] = sqlstore.Operation{ID: string(c.id), Key: c.key, Apply: c.apply, Err: &c.result.Err}
	}
	return ops
}

// Claim implements [dedupstore.Store]. It makes the first claims of keys, as nearly all are, and then looks at the
// records of the others. Among duplicates, as when a stream is read again, it looks first. Only claims that change a
// record lock it, and are decided again.
func (f *form) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	var asked []*claiming
	for i := range requests {
		if results[i].Err = requests[i].Validate(); results[i].Err == nil {
			asked = append(asked, newClaiming(&requests[i], &results[i]))
		}
	}
	f.claim(ctx, asked, f.store.known.Load())
	fresh := 0
	for _, c := range asked {
		if c.result.Answer.Found == dedupstore.Absent {
			fresh++
		}
	}
	f.store.known.Store(2*fresh < len(asked))
	return results
}

// claim answers requests. Known says that most of their keys have records.
func (f *form) claim(ctx context.Context, asked []*claiming, known bool) {
	f.claimEach(ctx, asked, func(claims []*claiming, text text) error {
		return f.ask(ctx, claims, text, !known, known)
	})
	open := func(absent bool) []*claiming {
		return slices.DeleteFunc(slices.Clone(asked), func(c *claiming) bool { return c.done || c.absent != absent })
	}
	f.claimEach(ctx, open(true), func(claims []*claiming, text text) error {
		return f.ask(ctx, claims, text, true, true)
	})
	f.claimEach(ctx, open(false), func(claims []*claiming, text text) error {
		return f.takeOver(ctx, claims, text)
	})
	for _, c := range open(true) { // somebody is making the record
		c.answer(dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running, Wait: c.Lease}, nil)
	}
}

func (f *form) claimEach(ctx context.Context, claims []*claiming, exec func([]*claiming, text) error) {
	together(ctx, claims, exec, func(c *claiming, err error) {
		c.answer(dedupstore.Answer{}, f.store.failed("claim", err))
	})
}

// ask makes the first claims of keys, or looks at records, or does both, in one round trip. It answers what leaves a
// record as it is. It goes by the order of the keys, so that two transactions never deadlock.
func (f *form) ask(ctx context.Context, claims []*claiming, text text, fresh, look bool) error {
	order := slices.Clone(claims)
	slices.SortStableFunc(order, func(a, b *claiming) int { return bytes.Compare(a.id, b.id) })
	settings := useIndexes + durability(f.relaxed)
	if len(order) > 1 {
		settings += waitTogether
	} else {
		settings += waitAlone
	}
	ops := operations(order)
	err := f.store.inTx(ctx, func(tx transaction) error {
		made, found := map[string]time.Time{}, map[string]*sqlstore.Row{}
		var now time.Time
		var b pgx.Batch
		if look {
			b.Queue(beginOwn)
		}
		b.Queue(settings)
		if fresh {
			f.store.queueFresh(&b, order, text, made)
		}
		if fresh && look { // an error if this user may not change records: then nothing is made
			b.Queue(f.store.sql.lock, [][]byte{})
		}
		if look {
			load(&b, f.store.sql.load, idsOf(ops), found, &now)
			b.Queue("commit")
		}
		if err := tx.send(ctx, &b); err != nil {
			return err
		}
		var open []*claiming
		for _, c := range order {
			at, is := made[c.name]
			if !is {
				open = append(open, c)
				continue
			}
			delete(made, c.name) // of two that are alike, the first has it
			_, a := dedupstore.Stored{}.Claim(*c.Request, at)
			c.answer(a, nil)
		}
		if !look {
			return nil
		}
		sqlstore.Decide(operations(open), found, nil, now)
		for _, c := range open {
			c.absent = found[string(c.id)] == nil
			if c.result.Err != sqlstore.ErrContended { //nolint:errorlint // Decide's own
				c.answer(c.result.Answer, c.result.Err)
			}
		}
		return nil
	})
	if codeOf(err) == codeLocked && len(order) == 1 { // somebody is inserting the key
		order[0].answer(sqlstore.Contended, nil)
		return nil
	}
	return err
}

// takeOver makes claims that change a record.
func (f *form) takeOver(ctx context.Context, claims []*claiming, text text) error {
	if err := f.store.change(ctx, operations(claims), f.relaxed, text); err != nil {
		return err
	}
	for _, c := range claims {
		if c.result.Err == sqlstore.ErrContended { //nolint:errorlint // Decide's own
			c.answer(sqlstore.Contended, nil)
		} else {
			c.answer(c.result.Answer, c.result.Err)
		}
	}
	return nil
}

// mostTogether is how many claims fresh_many.sql makes.
const mostTogether = 16

// alike is how many of the first claims may share a statement.
func alike(claims []*claiming) int {
	n := 1
	for n < min(len(claims), mostTogether) && claims[n].Lease == claims[0].Lease &&
		claims[n].Retention == claims[0].Retention {
		n++
	}
	return n
}

// queueFresh makes claims of keys that have no record, and notes when it made them.
func (s *Store) queueFresh(batch *pgx.Batch, claims []*claiming, text text, made map[string]time.Time) {
	for len(claims) > 0 {
		some := claims[:alike(claims)]
		claims = claims[len(some):]
		lease := sqlstore.Micros(some[0].Lease)
		life := lease + sqlstore.Micros(some[0].Retention)
		ends := [...]pgtype.Interval{interval(lease), interval(life), interval(life + life/16)}
		var query *pgx.QueuedQuery
		if len(some) == 1 {
			c := some[0]
			query = batch.Queue(s.sql.fresh, c.id, c.key, c.Owner, ends[0], ends[1], ends[2],
				c.print, c.Trace, text(c.holder))
		} else {
			n := len(some)
			ids, keys, owners := make([][]byte, n), make([]string, n), make([]string, n)
			prints, traces, holders := make([]string, n), make([]string, n), make([]string, n)
			for i, c := range some {
				ids[i], keys[i], owners[i] = c.id, c.key, c.Owner
				prints[i], traces[i], holders[i] = c.print, c.Trace, text(c.holder)
			}
			query = batch.Queue(s.sql.freshMany, ids, keys, owners, ends[0], ends[1], ends[2], prints, traces, holders)
		}
		query.Query(func(rows pgx.Rows) error {
			var id []byte
			var owner string
			var fence int64
			_, err := pgx.ForEachRow(rows, []any{&id, &owner, &fence}, func() error {
				made[string(id)+owner] = time.UnixMicro(fence)
				return nil
			})
			return err
		})
	}
}

// interval is so many microseconds.
func interval(micros int64) pgtype.Interval {
	return pgtype.Interval{Microseconds: micros, Valid: true}
}
