package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// How much a page looks at, and returns: it takes milliseconds.
const (
	pageRows  = 2000
	pageBytes = 4 << 20 // of results; the page ends with the record that goes beyond
)

// pageSQL finds the end of a page. Row numbers have few gaps, so the range of them tells how many records there are.
const pageSQL = `
SELECT count(*), coalesce(max(number), 0),
	coalesce((SELECT max(number) FROM "{table}") - (SELECT min(number) FROM "{table}") + 1, 0)
FROM (SELECT number FROM "{table}" WHERE number > ? ORDER BY number LIMIT ?)`

const lookedSQL = `SELECT count(*) FROM "{table}" WHERE number > ? AND number <= ?`

// fromSQL are the records of a page.
const fromSQL = ` FROM "{table}" LEFT JOIN "{table}_duplicates" USING (number, first_at)
WHERE number > ? AND number <= ? AND expires_at > ?`

const (
	listSQL  = `SELECT ` + columns + `, NULL, coalesce(count, 0), coalesce(last_at, 0)` + fromSQL
	countSQL = `SELECT key, state, kind, coalesce(count, 0)` + fromSQL
	orderSQL = ` ORDER BY number`
)

// List implements [dedupstore.Inspector]. It does not wait for the write lock, and nobody waits for it.
func (s *Store) List(ctx context.Context, f dedupstore.Filter, after string) (found dedupstore.Page, err error) {
	p, err := s.page(ctx, after)
	if err != nil {
		return found, err
	}
	bytes, last, now := 0, p.end, clock() // records that expire meanwhile are listed
	var unreadable error
	err = s.each(ctx, p, listSQL, &f, func(rows *sql.Rows) (more bool, err error) {
		var duplicates int
		var at int64
		rec, err := scan(rows, now, &duplicates, &at)
		if err != nil {
			return false, err
		}
		key, err := dedupstore.ParseKey(rec.Key)
		if err != nil {
			rec.Err = &dedupstore.RecordError{Key: rec.Key, Problem: err.Error()}
		}
		if rec.Err != nil {
			unreadable = errors.Join(unreadable, rec.Err)
			return true, nil
		}
		seen := rec.Look(key, now)
		seen.Duplicates, seen.LastDuplicate = duplicates, sqlstore.TimeAt(at)
		if f.Matches(&seen) {
			found.Records = append(found.Records, seen)
		}
		if bytes += len(seen.Outcome.Result); bytes >= pageBytes {
			last = rec.Number
		}
		return bytes < pageBytes, nil
	})
	if err == nil && last < p.end {
		p.next = strconv.FormatInt(last, 10)
		err = s.db.QueryRowContext(ctx, s.in(lookedSQL), p.after, last).Scan(&p.looked)
	}
	if err != nil {
		return dedupstore.Page{}, fmt.Errorf("sqlitestore: list: %w", ended(ctx, err))
	}
	found.Next, found.Looked, found.Total = p.next, p.looked, p.total
	return found, unreadable
}

// Count implements [dedupstore.Inspector]. It waits for nobody, as List.
func (s *Store) Count(ctx context.Context, f dedupstore.Filter, after string) (c dedupstore.Count, err error) {
	p, err := s.page(ctx, after)
	if err != nil {
		return c, err
	}
	type group struct{ scope, state, kind string }
	type sum struct{ records, duplicates int }
	sums := map[group]sum{}
	err = s.each(ctx, p, countSQL, &f, func(rows *sql.Rows) (more bool, err error) {
		var g group
		var duplicates int
		err = rows.Scan(&g.scope, &g.state, &g.kind, &duplicates)
		g.scope = g.scope[:strings.LastIndexByte(g.scope, ':')+1] // of the key
		was := sums[g]
		sums[g] = sum{was.records + 1, was.duplicates + duplicates}
		return true, err
	})
	if err != nil {
		return c, fmt.Errorf("sqlitestore: count: %w", ended(ctx, err))
	}
	var unreadable error
	for g, sum := range sums {
		key, err := dedupstore.ParseKey(g.scope + "any")
		if err != nil {
			unreadable = errors.Join(unreadable, &dedupstore.RecordError{Key: g.scope, Problem: err.Error()})
			continue
		}
		c.Tallies = append(c.Tallies, dedupstore.Tally{
			Tenant: key.Tenant, Group: key.Group, Handler: key.Handler,
			State: dedupstore.State(g.state), Kind: dedupstore.Kind(g.kind),
			Records: sum.records, Duplicates: sum.duplicates,
		})
	}
	c.Next, c.Looked, c.Total = p.next, p.looked, p.total
	return c, unreadable
}

// A page is a range of row numbers.
type page struct {
	after, end    int64
	next          string
	looked, total int
}

// page finds the page that begins after another.
func (s *Store) page(ctx context.Context, after string) (p page, err error) {
	if err := s.usable(ctx); err != nil {
		return p, err
	}
	if after != "" {
		if p.after, err = strconv.ParseInt(after, 10, 64); err != nil {
			problem := fmt.Sprintf("is %q, want the Next of a page", after)
			return p, &dedupstore.InvalidError{Package: "sqlitestore", Field: "after", Problem: problem}
		}
	}
	err = s.db.QueryRowContext(ctx, s.in(pageSQL), p.after, pageRows).Scan(&p.looked, &p.end, &p.total)
	if err != nil {
		return p, fmt.Errorf("sqlitestore: find a page: %w", ended(ctx, err))
	}
	if p.looked == pageRows {
		p.next = strconv.FormatInt(p.end, 10)
	}
	return p, nil
}

// each reads the rows of a page that a filter lets through, in their order, until there is no more wanted.
func (s *Store) each(
	ctx context.Context, p page, query string, f *dedupstore.Filter, read func(*sql.Rows) (more bool, err error),
) error {
	where, args := conditions(f)
	args = append([]any{p.after, p.end, clock().UnixMicro()}, args...)
	rows, err := s.db.QueryContext(ctx, s.in(query+where+orderSQL), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if more, err := read(rows); err != nil || !more {
			return err
		}
	}
	return rows.Err()
}

// conditions are what [dedupstore.Filter.Matches] says, in SQL.
func conditions(f *dedupstore.Filter) (where string, args []any) {
	add := func(condition string, values ...any) {
		where += " AND " + condition
		args = append(args, values...)
	}
	if f.Tenant+f.Group+f.Handler+f.ID != "" {
		key := dedupstore.Key{Tenant: f.Tenant, Group: f.Group, Handler: f.Handler, ID: f.ID}
		parts := strings.Split(key.String(), ":") // no part has a colon, nor any sign that GLOB takes for another
		for i, part := range parts {
			if part == "" {
				parts[i] = "*"
			}
		}
		add(`key GLOB ?`, strings.Join(parts, ":"))
	}
	if len(f.States) > 0 {
		add(`state IN (?`+strings.Repeat(`, ?`, len(f.States)-1)+`)`, texts(f.States)...)
	}
	if len(f.Kinds) > 0 {
		add(`kind IN (?`+strings.Repeat(`, ?`, len(f.Kinds)-1)+`)`, texts(f.Kinds)...)
	}
	if f.Reason != "" {
		add(`instr(reason, ?) > 0`, []byte(f.Reason))
	}
	if !f.Since.IsZero() {
		add(`fence >= ?`, sqlstore.MicrosAt(f.Since))
	}
	if !f.Before.IsZero() {
		add(`fence < ?`, sqlstore.MicrosAt(f.Before))
	}
	return where, args
}

func texts[T ~string](of []T) (values []any) {
	for _, text := range of {
		values = append(values, string(text))
	}
	return values
}
