package cassandrastore

import (
	"context"
	"errors"
	"fmt"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

const (
	// maxInFlight is how many statements of a store are under way at once. Others wait.
	maxInFlight = 128

	// answerWithin is how long a statement may take, with what the driver sends again.
	answerWithin = 10 * time.Second
)

// Store keeps records in a table. It is a [dedupstore.Inspector] and a [dedupstore.Checker], and safe for concurrent
// use.
type Store struct {
	session  *gocql.Session
	cfg      Config
	cql      statements
	quorum   gocql.Consistency
	serial   gocql.Consistency
	slack    time.Duration    // how much longer leases live than they were asked for
	wall     func() time.Time // what leases are counted by: time.Now, or a clock that tests move
	within   time.Duration    // answerWithin; tests are more patient
	clock    clock
	records  recordstore.Records
	turns    turns
	inFlight chan struct{}
}

type statements struct{ read, create, replace, remove, list string }

// New returns a store. It asks for nothing: a table that is missing, or does not fit, is a [*dedupstore.SetupError] of
// the first operation, and of Check. The session stays the caller's.
func New(session *gocql.Session, c Config) (*Store, error) {
	c = c.withDefaults()
	if err := c.validate(session); err != nil {
		return nil, err
	}
	s := &Store{
		session: session, cfg: c, quorum: gocql.Quorum, serial: gocql.Serial, slack: 2 * c.MaxSkew,
		wall: time.Now, within: answerWithin,
		clock:    clock{bound: c.MaxSkew, lasts: compareAfter, asking: make(chan struct{}, 1)},
		inFlight: make(chan struct{}, maxInFlight),
		// There is no INSERT: it would give the row a TTL of its own, and leave it empty if a later write's is shorter.
		// A condition names both columns, so that a refusal tells both.
		cql: statements{
			read:    "SELECT rev, rec FROM %s WHERE id = ?",
			create:  "UPDATE %s USING TTL ? SET rev = ?, rec = ? WHERE id = ? IF rev = null AND rec = null",
			replace: "UPDATE %s USING TTL ? SET rev = ?, rec = ? WHERE id = ? IF rev = ? AND rec != null",
			remove:  "DELETE FROM %s WHERE id = ? IF rev = ? AND rec != null",
			list:    fmt.Sprintf("SELECT token(id), id, rec FROM %%s WHERE token(id) > ? LIMIT %d", pageSize),
		},
	}
	for _, cql := range []*string{&s.cql.read, &s.cql.create, &s.cql.replace, &s.cql.remove, &s.cql.list} {
		*cql = fmt.Sprintf(*cql, c.located())
	}
	if c.Local {
		s.quorum, s.serial = gocql.LocalQuorum, gocql.LocalSerial
	}
	s.records = recordstore.Records{
		Package: "cassandrastore", Now: s.now, Read: s.read, Write: s.write, Grant: s.grant,
	}
	return s, nil
}

// Claim implements [dedupstore.Store]. A key that this store has not claimed lately is tried as a new one first.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return recordstore.Claim(ctx, requests, nil, func(ctx context.Context, w *recordstore.Work) error {
		end, err := s.turns.take(ctx, w.Key)
		if err != nil {
			return err
		}
		defer end()
		// A clock that is wrong grants nothing, but outcomes can be told.
		return s.records.Claim(ctx, w, func(ctx context.Context) bool { return s.inTime(ctx) == nil })
	})
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return recordstore.Extend(ctx, extensions, s.records.Do)
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return recordstore.Settle(ctx, settlings, s.records.Do)
}

// NoteDuplicates implements [dedupstore.Inspector].
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	return recordstore.Note(ctx, duplicates, s.records.Do)
}

// now is the time by this host's clock. Whatever lasts gets the slack.
func (s *Store) now(context.Context) (recordstore.Time, error) {
	now := s.wall().Truncate(time.Microsecond)
	return recordstore.Time{Early: now, Late: now.Add(s.slack)}, nil
}

// read asks for a record. It is a transaction of its own: it has all writes before it, and what was under way is done
// by then, or never.
func (s *Store) read(ctx context.Context, key dedupstore.Key) (recordstore.Revision, error) {
	var number int64
	var rec []byte
	err := s.do(ctx, func(ctx context.Context) error {
		return s.session.Query(s.cql.read, key.String()).Consistency(s.serial).ScanContext(ctx, &number, &rec)
	})
	switch {
	case errors.Is(err, gocql.ErrNotFound):
		return recordstore.Revision{}, nil
	case err != nil:
		return recordstore.Revision{}, err
	}
	return decode(key.String(), number, rec)
}

// grant is write for claims and changes, which need a clock that is right.
func (s *Store) grant(
	ctx context.Context, key dedupstore.Key, next *dedupstore.Stored, seen int64, now recordstore.Time,
) (number int64, there *recordstore.Revision, err error) {
	if err := s.inTime(ctx); err != nil {
		return 0, nil, err
	}
	return s.write(ctx, key, next, seen, now)
}

// write writes a record if the number of the one that is there is the given one; 0: if there is none. With a conflict
// it returns the one that is there. If Cassandra does not know whether a write was done, and a read does not tell
// either, the caller gets the error and may ask again. It is a [recordstore.Write].
func (s *Store) write(
	ctx context.Context, key dedupstore.Key, next *dedupstore.Stored, seen int64, _ recordstore.Time,
) (number int64, there *recordstore.Revision, err error) {
	if next == nil {
		there, err = s.conditionally(ctx, key, s.cql.remove, key.String(), seen)
		return 0, there, err
	}
	rec := recordstore.Encode(next)
	if size := len(rec) + recordstore.Growth(next); size > maxRecord {
		return 0, nil, fmt.Errorf("cassandrastore: %w: a record of up to %d bytes, the limit is %d",
			dedupstore.ErrTooLarge, size, maxRecord)
	}
	number = recordstore.NewNumber()
	cql, values := s.cql.create, []any{s.ttl(next), number, rec, key.String()}
	if seen != 0 {
		cql, values = s.cql.replace, append(values, seen)
	}
	there, err = s.conditionally(ctx, key, cql, values...)
	if inDoubt(err) {
		if found, unknown := s.read(ctx, key); unknown == nil && found.Number == number {
			err = nil
		} else if unknown == nil && found.Number == seen { // it was not done, and will not be
			there, err = &found, recordstore.ErrConflict
		}
	}
	return number, there, err
}

// maxTTL is the longest time for which a row gets a TTL, in seconds. Cassandra's limits are 20 years, and 2038 until
// all of its files are in the form of version 5. What lasts longer gets no TTL.
const maxTTL = 10 * 365 * 24 * 60 * 60

// ttl is how long a record is kept, in seconds. Cassandra counts whole ones, also that in which it was written.
func (s *Store) ttl(rec *dedupstore.Stored) int {
	seconds := (rec.Expires.Sub(s.wall())+s.cfg.MaxSkew+time.Second-1)/time.Second + 1
	if seconds > maxTTL {
		return 0
	}
	return max(1, int(seconds))
}

// conditionally makes a lightweight transaction. With a conflict it returns the record that is there.
func (s *Store) conditionally(
	ctx context.Context, key dedupstore.Key, cql string, values ...any,
) (there *recordstore.Revision, err error) {
	row := map[string]any{}
	err = s.do(ctx, func(ctx context.Context) error {
		q := s.session.Query(cql, values...).Consistency(s.quorum).SerialConsistency(s.serial)
		applied, err := q.MapScanCASContext(ctx, row)
		if err == nil && !applied {
			err = recordstore.ErrConflict
		}
		return err
	})
	if !errors.Is(err, recordstore.ErrConflict) {
		return nil, err
	}
	number, _ := row["rev"].(int64)
	rec, _ := row["rec"].([]byte)
	found, err := decode(key.String(), number, rec)
	if err != nil {
		return nil, err
	}
	return &found, recordstore.ErrConflict
}

// do sends a statement when there is room for it.
func (s *Store) do(ctx context.Context, send func(context.Context) error) error {
	err := s.inTurn(ctx, send)
	if err == nil || errors.Is(err, recordstore.ErrConflict) || errors.Is(err, gocql.ErrNotFound) {
		return err
	}
	return s.failed(ctx, err) // which may ask, too, and needs room for it
}

func (s *Store) inTurn(ctx context.Context, send func(context.Context) error) error {
	select {
	case s.inFlight <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.inFlight }()
	bounded, cancel := context.WithTimeout(ctx, s.within)
	defer cancel()
	return send(bounded)
}
