package main

import (
	"context"
	"database/sql"
	"errors"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/oncemill/oncemill/producer"
)

// A tally counts IDs exactly. It keeps a sighting of each message in a database of its own.
type tally struct {
	dir    string
	db     *sql.DB
	tx     *sql.Tx
	insert *sql.Stmt
}

// A sighting is one message.
type sighting struct {
	id   string
	at   int64 // Unix time in nanoseconds
	kind int   // index of kinds
}

// kinds are the kinds of IDs that can be found.
var kinds = []producer.Source{
	producer.SourceMessageID, producer.SourceCloudEvent, producer.SourceNatsMsgID, producer.SourceIdempotencyKey,
	producer.SourceDebezium, producer.SourceWatermillUUID, producer.SourceHeader, sourcePayload,
}

func newTally(ctx context.Context) (t *tally, err error) {
	dir, err := os.MkdirTemp("", "oncemill-duplicates-")
	if err != nil {
		return nil, err
	}
	t = &tally{dir: dir}
	// Nothing has to outlive this process.
	path := filepath.Join(dir, "seen")
	t.db, err = sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(off)&_pragma=synchronous(off)")
	if err == nil {
		t.db.SetMaxOpenConns(1)
		_, err = t.db.ExecContext(ctx, "CREATE TABLE seen (id TEXT, at INTEGER, kind INTEGER)")
	}
	if err == nil {
		t.tx, err = t.db.BeginTx(ctx, nil)
	}
	if err == nil {
		t.insert, err = t.tx.PrepareContext(ctx, "INSERT INTO seen VALUES (?, ?, ?)")
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *tally) add(ctx context.Context, id producer.Identity, at time.Time) error {
	_, err := t.insert.ExecContext(ctx, id.ID, at.UnixNano(), slices.Index(kinds, id.Source))
	return err
}

// each calls do with all sightings, the copies of an ID side by side, in the order of their times.
func (t *tally) each(ctx context.Context, do func(sighting)) error {
	rows, err := t.tx.QueryContext(ctx, "SELECT id, at, kind FROM seen ORDER BY id, at")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var s sighting
		if err := rows.Scan(&s.id, &s.at, &s.kind); err != nil {
			return err
		}
		do(s)
	}
	return rows.Err()
}

// close removes what was written.
func (t *tally) close() error {
	return errors.Join(t.db.Close(), os.RemoveAll(t.dir))
}

// spans are how far apart copies are. It keeps them to a precision of 1 %, and the longest exactly.
type spans struct {
	counts map[time.Duration]int
	n      int
	max    time.Duration
}

func (s *spans) add(d time.Duration) {
	if s.counts == nil {
		s.counts = map[time.Duration]int{}
	}
	s.max = max(s.max, d)
	s.n++
	if cut := bits.Len64(uint64(d)) - 8; cut > 0 {
		d = d >> cut << cut
	}
	s.counts[d]++
}

// share is the span that a share of all do not exceed.
func (s *spans) share(part float64) time.Duration {
	lengths := make([]time.Duration, 0, len(s.counts))
	for d := range s.counts {
		lengths = append(lengths, d)
	}
	slices.Sort(lengths)
	left := int(part*float64(s.n) + 0.999999)
	for _, d := range lengths {
		if left -= s.counts[d]; left <= 0 {
			return d
		}
	}
	return s.max
}
