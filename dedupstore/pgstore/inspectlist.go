package pgstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

const (
	pageSize       = 2000    // records that a page of a list looks at
	pageBytes      = 8 << 20 // of results; the page ends with the record that goes beyond
	countSize      = 128     // blocks that a part of a count reads, of some 15 records each
	duplicatesSize = 16      // blocks of duplicates that it reads, of some 75 each; their records lie anywhere
)

const (
	// listSQL looks at the records that follow an ID. An update moves a record on the disk, but not among IDs, so that
	// none is left out. Each row begins with how far that got. If the filter lets nothing through, one row has no more.
	listSQL = `
WITH page AS MATERIALIZED (SELECT * FROM {records} x WHERE x.id > $1::bytea ORDER BY x.id LIMIT {page})
SELECT p.*, s.* FROM (
	SELECT (SELECT count(*) FROM page), (SELECT p.id FROM page p OFFSET {page} - 1), ` + totalSQL + `) p
LEFT JOIN (` + seenSQL + ` FROM page x` + beatSQL + copiesSQL + `
	WHERE ` + liveSQL + filterSQL + `) s ON true`

	// countSQL counts the records in some blocks, and those of them that a filter lets through. That is much
	// cheaper than to follow IDs, which lie all over the table.
	countSQL = tallySQL + `count(*), count(*) FILTER (WHERE ` + liveSQL + filterSQL + `), 0::bigint
FROM {records} x` + beatSQL + `
WHERE x.ctid >= ('(' || $1::bigint || ',0)')::tid AND x.ctid < ('(' || $1::bigint + {blocks} || ',0)')::tid
GROUP BY 1, 2, 3`

	// countDuplicatesSQL counts the duplicates in some blocks of their table.
	countDuplicatesSQL = tallySQL + `0::bigint, 0::bigint, sum(d.copies)::bigint
FROM {duplicates} d
JOIN LATERAL (SELECT * FROM {records} x WHERE x.id = d.id AND x.first_at = d.first_at OFFSET 0) x ON true` +
		beatSQL + `
WHERE d.ctid >= ('(' || $1::bigint || ',0)')::tid AND d.ctid < ('(' || $1::bigint + {duplicate_blocks} || ',0)')::tid
	AND ` + liveSQL + filterSQL + `
GROUP BY 1, 2, 3`

	tallySQL = `SELECT left(x.key, -length(split_part(x.key, ':', 4))), x.state, coalesce(x.kind, ''), `

	sizesSQL = `SELECT pg_relation_size('{records}') / current_setting('block_size')::bigint,
	pg_relation_size('{duplicates}') / current_setting('block_size')::bigint, ` + totalSQL

	totalSQL = `(SELECT greatest(c.reltuples, 0)::bigint FROM pg_class c WHERE c.oid = '{records}'::regclass)`

	filterSQL = `
	AND ($2::text = '' OR split_part(x.key, ':', 1) = $2::text)
	AND ($3::text = '' OR split_part(x.key, ':', 2) = $3::text)
	AND ($4::text = '' OR split_part(x.key, ':', 3) = $4::text)
	AND ($5::text = '' OR split_part(x.key, ':', 4) = $5::text)
	AND ($6::text[] IS NULL OR x.state = ANY ($6::text[]))
	AND ($7::text[] IS NULL OR x.kind = ANY ($7::text[]))
	AND ($8::text = '' OR strpos(x.reason, $8::text) > 0)
	AND x.fence >= $9::bigint AND x.fence < $10::bigint`

	// callPaging lets plans follow IDs, or read blocks, however small the table is when they are made.
	callPaging = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('enable_sort', 'off', true)`
)

// filterArgs are the arguments of filterSQL, after one. The parts of a key, and the reason, are compared as they are
// stored.
func filterArgs(first any, f *dedupstore.Filter) []any {
	args := []any{first}
	key := dedupstore.Key{Tenant: f.Tenant, Group: f.Group, Handler: f.Handler, ID: f.ID}
	for part := range strings.SplitSeq(key.String(), ":") {
		args = append(args, part)
	}
	before := int64(math.MaxInt64)
	if !f.Before.IsZero() {
		before = sqlstore.MicrosAt(f.Before)
	}
	return append(args, texts(f.States), texts(f.Kinds), encodeText(f.Reason), sqlstore.MicrosAt(f.Since), before)
}

// texts is nil if there are none.
func texts[T ~string](of []T) (all []string) {
	for _, one := range of {
		all = append(all, string(one))
	}
	return all
}

// List implements [dedupstore.Inspector].
func (f *form) List(ctx context.Context, filter dedupstore.Filter, after string) (dedupstore.Page, error) {
	from, err := hex.DecodeString(after)
	if err != nil {
		return dedupstore.Page{}, badAfter(after)
	}
	var page dedupstore.Page
	var unreadable error
	var last []byte
	progress := []any{&page.Looked, &last, &page.Total}
	var batch pgx.Batch
	batch.Queue(callPaging)
	batch.Queue(f.store.sql.list, filterArgs(from, &filter)...).Query(func(rows pgx.Rows) error {
		c := newScanner(progress...)
		bytes := 0
		for n := 1; rows.Next(); n++ {
			columns := rows.RawValues()
			if columns[len(progress)] == nil {
				return rows.Scan(append(progress, make([]any, len(columns)-len(progress))...)...)
			}
			if err := c.scan(rows); err != nil {
				return err
			}
			key, err := keyOf(c.row.Key)
			if err = cmp.Or(c.row.Err, err); err != nil {
				unreadable = errors.Join(unreadable, err)
			} else if seen := c.row.Look(key, c.now); filter.Matches(&seen) {
				page.Records = append(page.Records, seen)
			}
			if bytes += len(c.row.Outcome.Result); bytes >= pageBytes {
				page.Looked, last = n, []byte(c.row.ID) // the rest is read, and forgotten
				return nil
			}
		}
		return rows.Err()
	})
	if err := f.store.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return dedupstore.Page{}, f.store.failed("list", err)
	}
	page.Next = hex.EncodeToString(last)
	return page, unreadable
}

// Count implements [dedupstore.Inspector]. It reads tables as they lie on the disk: a record that is written meanwhile
// may be left out, or counted twice. A part is named by its first block; those of duplicates, which come last, are
// negative.
func (f *form) Count(ctx context.Context, filter dedupstore.Filter, after string) (dedupstore.Count, error) {
	var from int64
	if after != "" {
		var err error
		if from, err = strconv.ParseInt(after, 10, 64); err != nil {
			return dedupstore.Count{}, badAfter(after)
		}
	}
	query, block := f.store.sql.count, from
	if from < 0 {
		query, block = f.store.sql.countDuplicates, -1-from
	}
	var c dedupstore.Count
	var unreadable error
	var records, duplicates int64 // blocks
	var batch pgx.Batch
	batch.Queue(callPaging)
	batch.Queue(f.store.sql.sizes).QueryRow(func(row pgx.Row) error {
		return row.Scan(&records, &duplicates, &c.Total)
	})
	batch.Queue(query, filterArgs(block, &filter)...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var scope string
			var looked int
			var t dedupstore.Tally
			if err := rows.Scan(&scope, &t.State, &t.Kind, &looked, &t.Records, &t.Duplicates); err != nil {
				return err
			}
			key, err := keyOf(scope + "any")
			if err != nil {
				unreadable = errors.Join(unreadable, err)
				continue
			}
			t.Tenant, t.Group, t.Handler = key.Tenant, key.Group, key.Handler
			c.Looked += looked
			if t.Records > 0 || t.Duplicates > 0 {
				c.Tallies = append(c.Tallies, t)
			}
		}
		return rows.Err()
	})
	if err := f.store.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return dedupstore.Count{}, f.store.failed("count", err)
	}
	switch {
	case from >= 0 && block+countSize < records:
		c.Next = strconv.FormatInt(from+countSize, 10)
	case from >= 0 && duplicates > 0:
		c.Next = "-1"
	case from < 0 && block+duplicatesSize < duplicates:
		c.Next = strconv.FormatInt(from-duplicatesSize, 10)
	}
	return c, unreadable
}

func badAfter(after string) error {
	return &dedupstore.InvalidError{Package: "pgstore", Field: "after",
		Problem: fmt.Sprintf("is %q, want the Next of what came before", after)}
}

func keyOf(name string) (dedupstore.Key, error) {
	key, err := dedupstore.ParseKey(name)
	if err != nil {
		return key, &dedupstore.RecordError{Key: name, Problem: err.Error()}
	}
	return key, nil
}
