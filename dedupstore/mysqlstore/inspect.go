package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Look implements [dedupstore.Inspector].
func (s *Store) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	var records []dedupstore.Record
	for batch := range slices.Chunk(keys, maxBatch) {
		ids := make([]string, len(batch))
		for i, key := range batch {
			ids[i] = sqlstore.IDOf(key.String())
		}
		found, now, err := s.load(ctx, s.db, ids, "")
		if err != nil {
			return nil, s.failed("look", err)
		}
		for i, key := range batch {
			rec := cmp.Or(found[ids[i]], &sqlstore.Row{})
			if rec.Err != nil {
				return nil, rec.Err
			}
			records = append(records, rec.Look(key, now))
		}
	}
	return records, nil
}

const (
	pageRows  = 2000    // records that a page looks at
	pageBytes = 4 << 20 // of results; the page ends with the record that goes beyond
)

// List implements [dedupstore.Inspector]. It waits for nobody, and nobody waits for it. What cannot be read is an error
// beside the page.
func (s *Store) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	return s.list(ctx, f, after, "result, stubs, NULL")
}

// Count implements [dedupstore.Inspector]. It waits for nobody, as List.
func (s *Store) Count(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Count, error) {
	page, err := s.list(ctx, f, after, "NULL, NULL, NULL")
	return page.Count(), err
}

func (s *Store) list(
	ctx context.Context, f dedupstore.Filter, after, large string,
) (page dedupstore.Page, err error) {
	if err := s.usable(ctx); err != nil {
		return page, err
	}
	from, err := hex.DecodeString(after)
	if err != nil {
		return page, &dedupstore.InvalidError{Package: "mysqlstore", Field: "after",
			Problem: fmt.Sprintf("is %q, want the Next of a page", after)}
	}
	err = s.db.QueryRowContext(ctx, "SELECT coalesce(max(table_rows), 0) FROM information_schema.tables WHERE "+
		"table_schema = DATABASE() AND table_name = '"+s.config.Table+"'").Scan(&page.Total)
	if err != nil {
		return page, s.failed("list", err)
	}
	query := fmt.Appendf(nil, "SELECT %s, %s, %s FROM `%s` WHERE id > ", sqlstore.MySQLNow, columns, large,
		s.config.Table)
	query = fmt.Appendf(sqlstore.AppendRow(query, from), " ORDER BY id LIMIT %d", pageRows)
	bytes := 0
	var unreadable error
	err = sqlstore.EachRow(ctx, s.db, string(query), func(rows *sql.Rows) error {
		r, now, err := scan(rows)
		if err != nil {
			return err
		}
		key, err := dedupstore.ParseKey(r.Key)
		if err != nil {
			r.Err = &dedupstore.RecordError{Key: r.Key, Problem: err.Error()}
		}
		if r.Err != nil {
			unreadable = errors.Join(unreadable, r.Err)
		} else if seen := r.Look(key, now); f.Matches(&seen) {
			page.Records = append(page.Records, seen)
		}
		page.Looked++
		if bytes += len(r.Outcome.Result); bytes >= pageBytes || page.Looked == pageRows {
			page.Next = hex.EncodeToString([]byte(r.ID))
			return io.EOF
		}
		return nil
	})
	if err != nil {
		return dedupstore.Page{}, s.failed("list", err)
	}
	page.Total = max(page.Total, page.Looked)
	return page, unreadable
}

// Change implements [dedupstore.Inspector].
func (s *Store) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	var refused error
	err := s.inTx(ctx, longestSilence, func(tx sqlstore.Querier) error {
		id := sqlstore.IDOf(seen.Key.String())
		found, now, err := s.load(ctx, tx, []string{id}, " FOR UPDATE")
		if err != nil {
			return err
		}
		rec := cmp.Or(found[id], &sqlstore.Row{})
		var next *dedupstore.Stored
		if refused = rec.Err; refused == nil {
			next, refused = rec.Change(seen, c, now)
		}
		switch {
		case refused != nil:
			return nil
		case next == nil:
			query := fmt.Appendf(nil, "DELETE FROM `%s` WHERE id = ", s.config.Table)
			_, err = sqlstore.Change(ctx, tx, string(sqlstore.AppendRow(query, id)))
			return err
		}
		rec.Stored = *next
		return s.save(ctx, tx, []*sqlstore.Row{rec})
	})
	if err != nil {
		return s.failed("change", err)
	}
	return refused
}

// NoteDuplicates implements [dedupstore.Inspector]. Counts are kept as long as their records.
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	ops := make([]sqlstore.Operation, len(duplicates))
	errs := make([]error, len(duplicates))
	for i, d := range duplicates {
		ops[i] = sqlstore.NewOperation(d.Key, &errs[i])
		ops[i].Apply = func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error) {
			return rec.Note(d, now), nil
		}
	}
	s.all(ctx, "note duplicates", ops)
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
