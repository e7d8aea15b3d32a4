package pgstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// FirstInTx implements [dedupstore.FirstTransactor].
func (i *inbox) FirstInTx(
	ctx context.Context, q dedupstore.Request,
	work func(context.Context, dedupstore.Claim) (dedupstore.Settlement, error),
) (dedupstore.Answer, error) {
	if err := q.ValidateFirst(); err != nil {
		return dedupstore.Answer{}, err
	}
	c := claimOf(&q)
	first := newClaiming(&q)
	err := i.repeat(ctx, c, func() error {
		r := &run{store: i.store, claim: c, id: first.id, token: firstToken,
			first: &firstRun{all: []*claiming{first}, began: time.Now()}}
		return i.once(ctx, r, func(ctx context.Context) (dedupstore.Settlement, error) { return work(ctx, r.claim) })
	})
	if errors.Is(err, errTaken) {
		together(ctx, []*claiming{first}, i.claimRest) // there is a record, nearly always
		return i.answer(first)
	}
	return dedupstore.Answer{}, err
}

// FirstsInTx implements [dedupstore.FirstTransactor].
func (i *inbox) FirstsInTx(
	ctx context.Context, requests []dedupstore.Request, work func(context.Context, []dedupstore.Claim) error,
) ([]dedupstore.Claim, error) {
	f := &firstRun{began: time.Now()}
	for j := range requests {
		if err := requests[j].ValidateFirst(); err != nil {
			return nil, err
		}
		f.all = append(f.all, newClaiming(&requests[j]))
	}
	r := &run{store: i.store, claim: claimOf(&requests[0]), token: firstToken, first: f}
	err := i.once(ctx, r, func(ctx context.Context) (dedupstore.Settlement, error) {
		finish := dedupstore.Finish{
			Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: r.claim.Retention,
		}
		return finish, work(ctx, f.made)
	})
	switch {
	case errors.Is(err, errTaken) && len(f.made) == 0:
		return nil, nil
	case err != nil:
		return nil, noRoom(err)
	}
	return f.made, nil
}

// claimOf is the claim of a first run, without its fence.
func claimOf(q *dedupstore.Request) dedupstore.Claim {
	return dedupstore.Claim{
		Key: q.Key, Owner: q.Owner, Attempt: 1, Lease: q.Lease, Retention: q.Retention, Holder: q.Holder,
	}
}

// errTaken says that a claim has to find out what there is.
var errTaken = errors.New("pgstore: somebody else has the key, or the commit got no answer")

// A firstRun makes its records in its own transaction, as they will be when it has succeeded.
type firstRun struct {
	all   []*claiming
	made  []dedupstore.Claim // those that had no record, and that nobody else makes
	began time.Time
}

// firstToken marks a transaction that has made its own record: nobody else can settle that record or bar the
// transaction.
const firstToken = "first"

// quick bounds the runs whose record does not say how long they took.
const quick = time.Second

// most is how many records one statement makes.
const most = 64

// statements calls do with each statement that makes records.
func (f *firstRun) statements(sql *statements, do func(query string, args []any)) {
	c := f.all[0]
	life := sqlstore.Micros(c.Lease) + sqlstore.Micros(c.Retention)
	keep, clean := interval(life), interval(life+life/16)
	idle := milliseconds(c.Lease)
	if len(f.all) == 1 {
		do(sql.first, []any{c.id, c.key, c.Owner, keep, clean, c.print, c.Trace, c.holder, idle})
		return
	}
	for some := range slices.Chunk(f.all, most) {
		ids, texts := make([][]byte, len(some)), [5][]string{}
		for i := range texts {
			texts[i] = make([]string, len(some))
		}
		for i, c := range some {
			ids[i] = c.id
			texts[0][i], texts[1][i], texts[2][i], texts[3][i], texts[4][i] = c.key, c.Owner, c.print, c.Trace, c.holder
		}
		do(sql.firstMany, []any{ids, texts[0], texts[1], keep, clean, texts[2], texts[3], texts[4], idle})
	}
}

// read reads which records were made. The first of them stands for all.
func (f *firstRun) read(r *run, rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}) error {
	fences := map[string]uint64{} // by owner: a batch may have copies of a message
	for rows.Next() {
		var owner string
		var fence int64
		if err := rows.Scan(&owner, &fence); err != nil {
			return err
		}
		fences[owner] = uint64(fence)
	}
	for _, c := range f.all {
		fence, made := fences[c.Owner]
		if !made {
			continue
		}
		claim := claimOf(c.Request)
		claim.Fence = fence
		if f.made = append(f.made, claim); len(f.made) == 1 {
			r.claim, r.id = claim, c.id
		}
	}
	return rows.Err()
}

// foresaw reports whether the record is already as a settlement wants it.
func (f *firstRun) foresaw(r *run, s *settling) bool {
	return s.plain() && s.result == nil && s.retention == sqlstore.Micros(r.claim.Retention) &&
		time.Since(f.began) < min(quick, r.claim.Lease)
}
