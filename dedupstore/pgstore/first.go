package pgstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// answers are the answers of Claim to first runs that do not take part. Nearly always there is a record.
func (i *inbox) answers(ctx context.Context, members []member) ([]dedupstore.Answer, error) {
	answers := make([]dedupstore.Answer, len(members))
	var apart []*claiming
	for _, m := range members {
		if m.claim.Fence == 0 {
			apart = append(apart, m.first)
		}
	}
	i.claim(ctx, apart, true)
	var failure error
	for n, m := range members {
		if m.claim.Fence != 0 {
			continue
		}
		if answers[n] = m.first.result.Answer; m.first.result.Err != nil {
			failure = m.first.result.Err
			answers[n] = contended
		}
	}
	return answers, failure
}

// claimOf is the claim of a first run, without its fence.
func claimOf(q *dedupstore.Request) dedupstore.Claim {
	return dedupstore.Claim{
		Key: q.Key, Owner: q.Owner, Attempt: 1, Lease: q.Lease, Retention: q.Retention, Holder: q.Holder,
	}
}

// errTaken says that a claim has to find out what there is.
var errTaken = errors.New("pgstore: somebody else has the key, or the commit got no answer")

// firstToken marks a transaction that has made its own record: nobody else can settle that record or bar the
// transaction.
const firstToken = "first"

// quick bounds the runs whose record does not say how long they took.
const quick = time.Second

// most is how many records one statement makes.
const most = 64

// firsts are the statements that make records, as they will be when the runs have succeeded.
func (r *run) firsts() (all []statement) {
	var made []*claiming
	for _, m := range r.members {
		if m.first != nil {
			made = append(made, m.first)
		}
	}
	if len(made) == 0 {
		return nil
	}
	c := made[0]
	life := sqlstore.Micros(c.Lease) + sqlstore.Micros(c.Retention)
	keep, clean := interval(life), interval(life+life/16)
	idle, sql := milliseconds(r.silence()), &r.store.sql
	if len(made) == 1 {
		return []statement{{sql.first, []any{c.id, c.key, c.Owner, keep, clean, c.print, c.Trace, c.holder, idle}}}
	}
	for some := range slices.Chunk(made, most) {
		ids, texts := make([][]byte, len(some)), [5][]string{}
		for i := range texts {
			texts[i] = make([]string, len(some))
		}
		for i, c := range some {
			ids[i] = c.id
			texts[0][i], texts[1][i], texts[2][i], texts[3][i], texts[4][i] = c.key, c.Owner, c.print, c.Trace, c.holder
		}
		all = append(all, statement{sql.firstMany,
			[]any{ids, texts[0], texts[1], keep, clean, texts[2], texts[3], texts[4], idle}})
	}
	return all
}

// read reads which records were made.
func (r *run) read(rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}) error {
	next := 0 // mostly they come in their order
	for rows.Next() {
		var owner string
		var fence int64
		if err := rows.Scan(&owner, &fence); err != nil {
			return err
		}
		for range r.members {
			m := &r.members[next]
			if next = (next + 1) % len(r.members); m.first == nil || m.claim.Owner != owner {
				continue
			}
			m.claim.Fence = uint64(fence)
			if r.stands.claim.Fence == 0 {
				r.stands = m
			}
			break
		}
	}
	return rows.Err()
}

// foresaw reports whether the record of a first run is already as a settlement wants it.
func (r *run) foresaw(m *member, f dedupstore.Finish) bool {
	return isPlain(f) && len(f.Outcome.Result) == 0 && f.Retention == m.claim.Retention &&
		time.Since(r.began) < min(quick, m.claim.Lease)
}
