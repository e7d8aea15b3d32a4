package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A claiming is a request, and what the claim function returns for it.
type claiming struct {
	*dedupstore.Request
	id                 []byte
	key, print, holder string
	err                error
	answer
}

// An answer is empty until there is one.
type answer struct {
	status, found, trace, kind, reason string
	fence, attempt, returned, age      int64
	wait                               int64 // busy: µs; done, acquired_publish: the fence of the decision
	exhausted, truncated               bool
	result, stubs, contents            []byte
}

func newClaiming(r *dedupstore.Request) *claiming {
	key := r.Key.String()
	c := &claiming{Request: r, id: idOf(key), key: key, holder: r.Holder}
	if !r.Fingerprint.IsZero() {
		c.print = r.Fingerprint.Scheme + ":" + r.Fingerprint.Sum
	}
	return c
}

// The statuses of records that are left alone.
const (
	contended = "contended" // somebody has it locked
	foreign   = "foreign"   // another key has the same hash
	odd       = "odd"       // this version cannot read it
)

// contendedWait is the wait of a Busy for a record that somebody has locked: they are about to change it.
const contendedWait = 5 * time.Millisecond

// Claim implements [dedupstore.Store]. It makes the first claims of keys, as nearly all are, and then the others. Among
// duplicates, as when a stream is read again, it asks for all at once.
func (f *form) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	all := make([]*claiming, len(requests))
	var asked, rest []*claiming
	for i := range requests {
		r := &requests[i]
		if results[i].Err = r.Validate(); results[i].Err == nil {
			all[i] = newClaiming(r)
			asked = append(asked, all[i])
		}
	}
	if !f.store.known.Load() {
		together(ctx, asked, f.claimFresh)
	}
	for _, c := range asked {
		if c.status == "" && c.err == nil {
			rest = append(rest, c)
		}
	}
	together(ctx, rest, f.claimRest)
	fresh := 0
	for _, c := range asked {
		if c.found == string(dedupstore.Absent) {
			fresh++
		}
	}
	f.store.known.Store(2*fresh < len(asked))
	for i, c := range all {
		if c != nil {
			results[i].Answer, results[i].Err = f.answer(c)
		}
	}
	return results
}

// answer is how a claim was answered, or why it was not.
func (f *form) answer(c *claiming) (dedupstore.Answer, error) {
	if c.err != nil {
		return dedupstore.Answer{}, f.store.failed("claim", c.err)
	}
	return c.read()
}

// claimFresh answers the first claims of keys, in one transaction and in the order of the keys, so that two
// transactions never deadlock.
func (f *form) claimFresh(ctx context.Context, claims []*claiming) error {
	order := slices.Clone(claims)
	slices.SortStableFunc(order, func(a, b *claiming) int { return bytes.Compare(a.id, b.id) })
	settings := callInsist
	if f.relaxed {
		settings = callHurry
	}
	if len(order) > 1 {
		settings += waitTogether
	} else {
		settings += waitAlone
	}
	err := f.store.again(ctx, func() error {
		for _, c := range order {
			c.answer = answer{}
		}
		var batch pgx.Batch
		batch.Queue(settings)
		for rest := order; len(rest) > 0; {
			n := alike(rest)
			f.store.queueFresh(&batch, rest[:n])
			rest = rest[n:]
		}
		return f.store.pool.SendBatch(ctx, &batch).Close()
	})
	if codeOf(err) == codeLocked && len(order) == 1 { // somebody is inserting the key
		order[0].status = contended
		return nil
	}
	return err
}

// mostTogether is how many claims fresh_many.sql makes.
const mostTogether = 16

// alike is how many of the first claims may share a statement.
func alike(claims []*claiming) int {
	n := 1
	for n < min(len(claims), mostTogether) && claims[n].Lease == claims[0].Lease &&
		claims[n].Retention == claims[0].Retention {
		n++
	}
	return n
}

// queueFresh makes claims that are alike. The answers of keys that had a record stay as they are.
func (s *Store) queueFresh(batch *pgx.Batch, claims []*claiming) {
	lease := sqlstore.Micros(claims[0].Lease)
	life := lease + sqlstore.Micros(claims[0].Retention)
	ends := [...]pgtype.Interval{interval(lease), interval(life), interval(life + life/16)}
	var query *pgx.QueuedQuery
	if len(claims) == 1 {
		c := claims[0]
		query = batch.Queue(s.sql.fresh, c.id, c.key, c.Owner, ends[0], ends[1], ends[2], c.print, c.Trace, c.holder)
	} else {
		n := len(claims)
		ids, keys, owners := make([][]byte, n), make([]string, n), make([]string, n)
		prints, traces, holders := make([]string, n), make([]string, n), make([]string, n)
		for i, c := range claims {
			ids[i], keys[i], owners[i] = c.id, c.key, c.Owner
			prints[i], traces[i], holders[i] = c.print, c.Trace, c.holder
		}
		query = batch.Queue(s.sql.freshMany, ids, keys, owners, ends[0], ends[1], ends[2], prints, traces, holders)
	}
	query.Query(func(rows pgx.Rows) error {
		var key string
		var fence int64
		_, err := pgx.ForEachRow(rows, []any{&key, &fence}, func() error {
			for _, c := range claims {
				if c.status == "" && c.key == key { // of two claims of a key, the first has it
					c.answer = answer{status: string(dedupstore.AcquiredRun), found: string(dedupstore.Absent),
						fence: fence, attempt: 1}
					break
				}
			}
			return nil
		})
		return err
	})
}

// interval is so many microseconds.
func interval(micros int64) pgtype.Interval {
	return pgtype.Interval{Microseconds: micros, Valid: true}
}

// claimRest answers claims, whatever there is.
func (f *form) claimRest(ctx context.Context, claims []*claiming) error {
	args := f.claimArgs(claims)
	return f.store.again(ctx, func() error {
		return f.store.committed(ctx, f.store.sql.claim, args, func(rows pgx.Rows) error {
			got := 0
			var n int64
			var a answer
			_, err := pgx.ForEachRow(rows, []any{
				&n, &a.status, &a.found, &a.fence, &a.attempt, &a.returned, &a.wait, &a.age, &a.trace,
				&a.kind, &a.exhausted, &a.truncated, &a.reason, &a.result, &a.stubs, &a.contents,
			}, func() error {
				claims[n-1].answer = a
				got++
				a.result, a.stubs, a.contents = nil, nil, nil // the next row must not be read into the same bytes
				return nil
			})
			if err == nil && got != len(claims) {
				err = fmt.Errorf("%d claims got %d answers", len(claims), got)
			}
			return err
		})
	})
}

// committed makes a statement in a transaction of READ COMMITTED, in one round trip. After an error the connection is
// cleaned: the pool would close it.
func (s *Store) committed(ctx context.Context, query string, args []any, read func(pgx.Rows) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var batch pgx.Batch
	batch.Queue(callCommitted)
	batch.Queue(query, args...).Query(read)
	batch.Queue("commit")
	err = conn.SendBatch(ctx, &batch).Close()
	rollback(ctx, conn)
	return err
}

func (f *form) claimArgs(claims []*claiming) []any {
	n := len(claims)
	ids, keys, owners := make([][]byte, n), make([]string, n), make([]string, n)
	leases, retentions, maxima, reruns := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	prints, traces, holders, parks := make([]string, n), make([]string, n), make([]string, n), make([]bool, n)
	suspects := make([]*int64, n)
	for i, c := range claims {
		ids[i], keys[i], owners[i] = c.id, c.key, c.Owner
		leases[i], retentions[i] = sqlstore.Micros(c.Lease), sqlstore.Micros(c.Retention)
		maxima[i], parks[i] = int64(c.MaxAttempts), c.ParkExpired
		if c.SuspectAfter > 0 { // else no run is refused
			suspects[i] = new(int64(c.SuspectAfter))
		}
		prints[i], traces[i], holders[i] = c.print, c.Trace, c.holder
		if c.Rerun <= math.MaxInt64 { // greater ones name no fence that there can be
			reruns[i] = int64(c.Rerun)
		}
	}
	return []any{ids, keys, owners, leases, retentions, prints, maxima, suspects, parks, reruns, traces, holders,
		f.relaxed}
}

// read makes of an answer what the caller gets.
func (c *claiming) read() (dedupstore.Answer, error) {
	got := dedupstore.Answer{
		Status: dedupstore.Status(c.status), Found: dedupstore.State(c.found), Fence: uint64(c.fence),
		Age: sqlstore.Duration(c.age), Trace: c.trace,
	}
	switch got.Status {
	case dedupstore.AcquiredRun, dedupstore.AcquiredPublish:
		got.Claim = dedupstore.Claim{
			Key: c.Key, Owner: c.Owner, Fence: uint64(c.fence), Attempt: int(c.attempt), Returned: int(c.returned),
			Lease: c.Lease, Retention: c.Retention, Holder: c.Holder,
		}
		if got.Status == dedupstore.AcquiredRun {
			return got, nil
		}
	case dedupstore.Done:
	case dedupstore.Busy:
		got.Wait = sqlstore.Duration(c.wait)
		return got, nil
	case dedupstore.Mismatch, dedupstore.Suspect:
		return got, nil
	case contended:
		return dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running, Wait: contendedWait}, nil
	case foreign:
		return dedupstore.Answer{}, recordError(c.key, "belongs to another key")
	case odd:
		return dedupstore.Answer{}, recordError(c.key,
			"was written by another version of the store, or by something else")
	default:
		return dedupstore.Answer{}, recordError(c.key, fmt.Sprintf("got the answer %q", c.status))
	}
	got.Fence = uint64(c.wait)
	var err error
	got.Outcome, err = c.outcome(c.key)
	return got, err
}

func (a *answer) outcome(key string) (dedupstore.Outcome, error) {
	o := dedupstore.Outcome{
		Kind: dedupstore.Kind(a.kind), Exhausted: a.exhausted, Truncated: a.truncated, Reason: decodeText(a.reason),
		Result: a.result,
	}
	switch o.Kind {
	case dedupstore.Succeeded, dedupstore.Failed, dedupstore.Unknown:
	default:
		return o, recordError(key, fmt.Sprintf("has an outcome of the kind %q", a.kind))
	}
	var err error
	if o.Produced, err = sqlstore.DecodeProduced(a.stubs, a.contents); err != nil {
		return dedupstore.Outcome{}, recordError(key, err.Error())
	}
	return o, nil
}

func recordError(key, problem string) error {
	return &dedupstore.RecordError{Key: key, Problem: problem}
}
