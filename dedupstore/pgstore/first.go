package pgstore

import (
	"slices"
	"time"

	"github.com/oncemill/oncemill/internal/sqlstore"
)

// firstToken marks a transaction that has made its own record: nobody else can settle that record or bar the
// transaction.
const firstToken = "first"

// quick bounds the runs whose record does not say how long they took.
const quick = time.Second

// most is how many records one statement makes.
const most = 64

// firsts are the statements that make records, as they will be when the runs have succeeded.
func (r *run) firsts() (all []statement) {
	made := make([]*claiming, len(r.Firsts))
	for n, m := range r.Firsts {
		made[n] = newClaiming(m.First, nil)
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
		var id []byte
		var owner string
		var fence int64
		if err := rows.Scan(&id, &owner, &fence); err != nil {
			return err
		}
		for range r.Firsts {
			m := r.Firsts[next]
			if next = (next + 1) % len(r.Firsts); m.ID == string(id) && m.Claim.Owner == owner {
				m.Claim.Fence = uint64(fence)
				break
			}
		}
	}
	return rows.Err()
}

// foresaw reports whether the record of a first run is already as its settlement wants it.
func (r *run) foresaw(m *sqlstore.Member) bool {
	return isPlain(m.Finish) && len(m.Finish.Outcome.Result) == 0 && m.Finish.Retention == m.Claim.Retention &&
		time.Since(r.began) < min(quick, m.Claim.Lease)
}
