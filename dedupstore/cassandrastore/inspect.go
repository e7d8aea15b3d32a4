package cassandrastore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

// Look implements [dedupstore.Inspector], by a read for each key.
func (s *Store) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	return s.records.Look(ctx, keys)
}

// A page ends after so many records, or with the one that makes it so large. They come in parts.
const (
	pageSize  = 2000
	pageBytes = 16 << 20
	partSize  = 200
)

// List implements [dedupstore.Inspector]. Records come in the order of their tokens, and a page begins behind the token
// where the last one ended. What cannot be read is an error beside the page.
func (s *Store) List(ctx context.Context, f dedupstore.Filter, after string) (page dedupstore.Page, err error) {
	token := int64(math.MinInt64) // no key has this one
	if after != "" {
		if token, err = strconv.ParseInt(after, 10, 64); err != nil {
			problem := fmt.Sprintf("is %q, want the Next of a page", after)
			return page, &dedupstore.InvalidError{Package: "cassandrastore", Field: "after", Problem: problem}
		}
	}
	var unreadable []error
	now := s.wall()
	err = s.do(ctx, func(ctx context.Context) error {
		q := s.session.Query(s.cql.list, token).Consistency(s.quorum).PageSize(partSize).Prefetch(0)
		iter := q.IterContext(ctx)
		var name string
		var rec []byte
		size := 0
		for page.Next == "" && iter.Scan(&token, &name, &rec) {
			page.Looked++
			if size += len(rec); page.Looked == pageSize || size >= pageBytes {
				page.Next = strconv.FormatInt(token, 10)
			}
			key, err := dedupstore.ParseKey(name)
			if err != nil {
				continue // something else
			}
			record, err := recordstore.Decode(rec)
			if err != nil {
				unreadable = append(unreadable, &dedupstore.RecordError{Key: name, Problem: err.Error()})
				continue
			}
			if seen := record.Look(key, now); f.Matches(&seen) {
				page.Records = append(page.Records, seen)
			}
		}
		return iter.Close()
	})
	if err != nil {
		return dedupstore.Page{}, err
	}
	return page, errors.Join(unreadable...)
}

// Count implements [dedupstore.Inspector] by listing.
func (s *Store) Count(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Count, error) {
	page, err := s.List(ctx, f, after)
	return page.Count(), err
}

// Change implements [dedupstore.Inspector].
func (s *Store) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	return s.records.Change(ctx, seen, c)
}
