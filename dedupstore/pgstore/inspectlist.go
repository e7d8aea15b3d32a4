package pgstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
)

// pageSize is how many records a page looks at: they take the server some milliseconds.
const pageSize = 2000

const (
	// listSQL and countSQL look at the records that follow an ID. Each row begins with how far that got: if the filter
	// lets nothing through, there is one without more.
	listSQL = `
WITH page AS MATERIALIZED (SELECT * FROM {records} x WHERE x.id > $1::bytea ORDER BY x.id LIMIT {page})` + progressSQL +
		seenSQL + ` FROM page x` + besideSQL + filterSQL + `) s ON true`

	countSQL = `
WITH page AS MATERIALIZED (
	SELECT x.id, x.fence, x.state, x.kind, x.key, x.reason, x.first_at, x.expires_at
	FROM {records} x WHERE x.id > $1::bytea ORDER BY x.id LIMIT {page})` + progressSQL + `
SELECT left(x.key, -length(split_part(x.key, ':', 4))) AS scope, x.state, coalesce(x.kind, '') AS kind, count(*),
	coalesce(sum(d.copies), 0)::bigint
FROM page x` + besideSQL + filterSQL + ` GROUP BY 1, 2, 3) s ON true`

	progressSQL = `
SELECT p.*, s.* FROM (SELECT (SELECT count(*) FROM page), (SELECT p.id FROM page p OFFSET {page} - 1),
	(SELECT greatest(c.reltuples, 0)::bigint FROM pg_class c WHERE c.oid = '{records}'::regclass)) p
LEFT JOIN (`

	filterSQL = `
	AND ($2::text = '' OR split_part(x.key, ':', 1) = $2::text)
	AND ($3::text = '' OR split_part(x.key, ':', 2) = $3::text)
	AND ($4::text = '' OR split_part(x.key, ':', 3) = $4::text)
	AND ($5::text = '' OR split_part(x.key, ':', 4) = $5::text)
	AND ($6::text[] IS NULL OR x.state = ANY ($6::text[]))
	AND ($7::text[] IS NULL OR x.kind = ANY ($7::text[]))
	AND ($8::text = '' OR strpos(x.reason, $8::text) > 0)
	AND x.fence >= $9::bigint AND x.fence < $10::bigint`

	// callPaging lets plans follow the primary key, and nothing else, however small the table is when they are made.
	callPaging = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('enable_sort', 'off', true)`
)

// filterArgs are the arguments of filterSQL. Its parts of a key, and its reason, are compared as they are stored.
func filterArgs(f *dedupstore.Filter) (args []any) {
	key := dedupstore.Key{Tenant: f.Tenant, Group: f.Group, Handler: f.Handler, ID: f.ID}
	for part := range strings.SplitSeq(key.String(), ":") {
		args = append(args, part)
	}
	before := int64(math.MaxInt64)
	if !f.Before.IsZero() {
		before = upMicros(f.Before)
	}
	return append(args, texts(f.States), texts(f.Kinds), encodeText(f.Reason), upMicros(f.Since), before)
}

// upMicros rounds up to µs: whatever is not before t is not before that either.
func upMicros(t time.Time) int64 { return t.Add(time.Microsecond - 1).UnixMicro() }

// texts is nil if there are none.
func texts[T ~string](of []T) (all []string) {
	for _, one := range of {
		all = append(all, string(one))
	}
	return all
}

// List implements [dedupstore.Inspector].
func (f *form) List(ctx context.Context, filter dedupstore.Filter, after string) (page dedupstore.Page, err error) {
	page.Next, err = f.page(ctx, f.store.sql.list, filter, after, []any{&page.Looked, &page.Total},
		func(rows pgx.Rows, before []any) error {
			name, r, err := scanRecord(rows, before...)
			if err == nil {
				r.Key, err = keyOf(name)
			}
			if err == nil && filter.Matches(&r) {
				page.Records = append(page.Records, r)
			}
			return err
		})
	if err != nil {
		return dedupstore.Page{}, f.store.failed("list", err)
	}
	return page, nil
}

// Count implements [dedupstore.Inspector].
func (f *form) Count(ctx context.Context, filter dedupstore.Filter, after string) (c dedupstore.Count, err error) {
	c.Next, err = f.page(ctx, f.store.sql.count, filter, after, []any{&c.Looked, &c.Total},
		func(rows pgx.Rows, before []any) error {
			var scope string
			var t dedupstore.Tally
			err := rows.Scan(append(before, &scope, &t.State, &t.Kind, &t.Records, &t.Duplicates)...)
			if err != nil {
				return err
			}
			key, err := keyOf(scope + "any")
			t.Tenant, t.Group, t.Handler = key.Tenant, key.Group, key.Handler
			c.Tallies = append(c.Tallies, t)
			return err
		})
	if err != nil {
		return dedupstore.Count{}, f.store.failed("count", err)
	}
	return c, nil
}

func keyOf(name string) (dedupstore.Key, error) {
	key, err := dedupstore.ParseKey(name)
	if err != nil {
		return key, recordError(name, err.Error())
	}
	return key, nil
}

// page reads the rows of a page, each with the columns before it: looked, where the next page begins, and the total.
func (f *form) page(ctx context.Context, query string, filter dedupstore.Filter, after string, progress []any,
	read func(rows pgx.Rows, before []any) error) (next string, err error) {
	from, err := hex.DecodeString(after)
	if err != nil {
		return "", &dedupstore.InvalidError{Field: "after", Problem: fmt.Sprintf("is %q, want the Next of a page", after)}
	}
	var last []byte
	before := []any{progress[0], &last, progress[1]}
	var batch pgx.Batch
	batch.Queue(callPaging)
	batch.Queue(query, append([]any{from}, filterArgs(&filter)...)...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			columns := rows.RawValues()
			if columns[len(before)] != nil {
				err = read(rows, before)
			} else {
				err = rows.Scan(append(before, make([]any, len(columns)-len(before))...)...)
			}
			if err != nil {
				return err
			}
		}
		return rows.Err()
	})
	err = f.store.pool.SendBatch(ctx, &batch).Close()
	return hex.EncodeToString(last), err
}
