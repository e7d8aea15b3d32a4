package cassandrastore

import (
	"context"
	"errors"
	"fmt"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
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
	slack    time.Duration // how much longer leases live than they were asked for
	clock    clock
	recent   recent
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
		clock:    clock{bound: c.MaxSkew, asking: make(chan struct{}, 1)},
		inFlight: make(chan struct{}, maxInFlight),
		// There is no INSERT: it would give the row a TTL of its own, and leave it empty if a later write's is shorter.
		// A condition names both columns, so that a refusal tells both.
		cql: statements{
			read:    "SELECT rev, rec FROM %s WHERE id = ?",
			create:  "UPDATE %s USING TTL ? SET rev = ?, rec = ? WHERE id = ? IF rev = null AND rec = null",
			replace: "UPDATE %s USING TTL ? SET rev = ?, rec = ? WHERE id = ? IF rev = ? AND rec != null",
			remove:  "DELETE FROM %s WHERE id = ? IF rev = ?",
			list:    fmt.Sprintf("SELECT token(id), id, rec FROM %%s WHERE token(id) > ? LIMIT %d", pageSize),
		},
	}
	for _, cql := range []*string{&s.cql.read, &s.cql.create, &s.cql.replace, &s.cql.remove, &s.cql.list} {
		*cql = fmt.Sprintf(*cql, c.located())
	}
	if c.Local {
		s.quorum, s.serial = gocql.LocalQuorum, gocql.LocalSerial
	}
	return s, nil
}

// Claim implements [dedupstore.Store]. A key that this store has not claimed lately is tried as a new one first.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return recordstore.Claim(ctx, requests, func(ctx context.Context, w *recordstore.Work) error {
		end, err := s.turns.take(ctx, w.Key)
		if err != nil {
			return err
		}
		defer end()
		_, claimed := s.recent.get(w.Key)
		// A clock that is wrong grants nothing, but outcomes can be told.
		return s.change(ctx, w, revision{}, !claimed && s.inTime(ctx) == nil, true)
	})
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return recordstore.Extend(ctx, extensions, s.changeRecent)
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return recordstore.Settle(ctx, settlings, s.changeRecent)
}

// NoteDuplicates implements [dedupstore.Inspector].
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	return recordstore.Note(ctx, duplicates, s.changeRecent)
}

// changeRecent does a work with the record that this store wrote last, if it knows it.
func (s *Store) changeRecent(ctx context.Context, w *recordstore.Work) error {
	seen, known := s.recent.get(w.Key)
	return s.change(ctx, w, seen, known, false)
}

// now is the time by this host's clock. Whatever lasts gets the slack.
func (s *Store) now() recordstore.Time {
	now := time.Now().Truncate(time.Microsecond)
	return recordstore.Time{Early: now, Late: now.Add(s.slack)}
}

// Pauses between tries to change a record that others change, too. Each try that fails means that somebody's succeeded.
const (
	maxTries   = 32
	firstPause = time.Millisecond
	lastPause  = 64 * time.Millisecond
)

// change does a work. Guessed says that what was seen may be out of date. A write proves that it was not; what writes
// nothing is decided by what the table has. Claims need a clock that is right. If Cassandra does not know whether a
// write was done, and a read does not tell either, the caller gets the error and may ask again.
func (s *Store) change(
	ctx context.Context, w *recordstore.Work, seen revision, guessed, claims bool,
) (err error) {
	unread, pause := !guessed, firstPause
	for range maxTries {
		if unread {
			if seen, err = s.read(ctx, w.Key); err != nil {
				return err
			}
			unread, guessed = false, false
		}
		next := w.Apply(seen.record, s.now())
		switch {
		case next == nil && !guessed:
			return nil
		case next == nil:
			unread = true
			continue
		case claims:
			if err := s.inTime(ctx); err != nil {
				return err
			}
		}
		written := newRevision(next)
		old, err := s.write(ctx, w.Key, written, seen.number)
		if inDoubt(err) {
			if found, unknown := s.read(ctx, w.Key); unknown == nil && found.number == written.number {
				err = nil
			} else if unknown == nil && found.number == seen.number { // it was not done, and will not be
				old, err = &found, errConflict
			}
		}
		if err == nil {
			s.recent.put(w.Key, written)
			return nil
		}
		s.recent.forget(w.Key)
		switch {
		case errors.Is(err, errConflict) && guessed:
			seen, guessed = *old, false
		case errors.Is(err, errConflict):
			if !pace.Sleep(ctx, pause) {
				return context.Cause(ctx)
			}
			pause, unread = min(2*pause, lastPause), true
		default:
			return err
		}
	}
	return s.busy(w.Key)
}

func (s *Store) busy(key dedupstore.Key) error {
	return fmt.Errorf("cassandrastore: key %q: others changed it %d times meanwhile", key, maxTries)
}

// errConflict says that a record is not the one that was seen.
var errConflict = errors.New("cassandrastore: somebody else wrote the record meanwhile")

// read asks for a record. It is a transaction of its own: it has all writes before it, and what was under way is done
// by then, or never.
func (s *Store) read(ctx context.Context, key dedupstore.Key) (revision, error) {
	var number int64
	var rec []byte
	err := s.do(ctx, func(ctx context.Context) error {
		return s.session.Query(s.cql.read, key.String()).Consistency(s.serial).ScanContext(ctx, &number, &rec)
	})
	switch {
	case errors.Is(err, gocql.ErrNotFound):
		return revision{}, nil
	case err != nil:
		return revision{}, err
	}
	return decode(key.String(), number, rec)
}

// write writes a record if the number of the one that is there is the given one; 0: if there is none. With errConflict
// it returns the one that is there.
func (s *Store) write(
	ctx context.Context, key dedupstore.Key, written revision, last int64,
) (old *revision, err error) {
	rec := recordstore.Encode(&written.record)
	if len(rec) > maxRecord {
		return nil, fmt.Errorf("cassandrastore: %w: a record of %d bytes, the limit is %d", dedupstore.ErrFull,
			len(rec), maxRecord)
	}
	values := []any{s.ttl(&written.record), written.number, rec, key.String()}
	if last == 0 {
		return s.conditionally(ctx, key, s.cql.create, values...)
	}
	return s.conditionally(ctx, key, s.cql.replace, append(values, last)...)
}

// maxTTL is the longest time for which a row gets a TTL, in seconds. Cassandra's limits are 20 years, and 2038 until
// all of its files are in the form of version 5. What lasts longer gets no TTL.
const maxTTL = 10 * 365 * 24 * 60 * 60

// ttl is how long a record is kept, in seconds. Cassandra counts whole ones, also that in which it was written.
func (s *Store) ttl(rec *dedupstore.Stored) int {
	seconds := (time.Until(rec.Expires)+s.cfg.MaxSkew+time.Second-1)/time.Second + 1
	if seconds > maxTTL {
		return 0
	}
	return max(1, int(seconds))
}

// conditionally makes a lightweight transaction. With errConflict it returns the record that is there.
func (s *Store) conditionally(
	ctx context.Context, key dedupstore.Key, cql string, values ...any,
) (old *revision, err error) {
	found := map[string]any{}
	err = s.do(ctx, func(ctx context.Context) error {
		q := s.session.Query(cql, values...).Consistency(s.quorum).SerialConsistency(s.serial)
		applied, err := q.MapScanCASContext(ctx, found)
		if err == nil && !applied {
			err = errConflict
		}
		return err
	})
	if !errors.Is(err, errConflict) {
		return nil, err
	}
	number, _ := found["rev"].(int64)
	rec, _ := found["rec"].([]byte)
	seen, err := decode(key.String(), number, rec)
	if err != nil {
		return nil, err
	}
	return &seen, errConflict
}

// do sends a statement when there is room for it.
func (s *Store) do(ctx context.Context, send func(context.Context) error) error {
	select {
	case s.inFlight <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.inFlight }()
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	err := send(bounded)
	if err == nil || errors.Is(err, errConflict) || errors.Is(err, gocql.ErrNotFound) {
		return err
	}
	return s.failed(ctx, err)
}
