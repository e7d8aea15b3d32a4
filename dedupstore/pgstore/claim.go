package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// An answer is what the claim function returns for one request.
type answer struct {
	n                                  int64
	status, found, trace, kind, reason string
	fence, attempt, returned, age      int64
	wait                               int64 // busy: µs; done, acquired_publish: the fence of the decision
	exhausted, truncated               bool
	result, stubs, contents            []byte
}

// The statuses of records that are left alone.
const (
	foreign = "foreign" // another key has the same hash
	odd     = "odd"     // this version cannot read it
)

// inserted is the answer to a claim of a key that somebody is inserting.
var inserted = answer{status: contended, found: string(dedupstore.Absent)}

// execClaims makes claims: together those of keys that have no record, as nearly all have, and then the others one by
// one.
func (f *form) execClaims(ctx context.Context, requests []*dedupstore.Request) ([]answer, error) {
	answers := make([]answer, len(requests))
	if err := f.claimFresh(ctx, requests, answers); err != nil {
		return nil, err
	}
	var rest []int
	for i := range answers {
		if answers[i].status == "" {
			rest = append(rest, i)
		}
	}
	if len(rest) > 0 {
		if err := f.claimRest(ctx, requests, rest, answers); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// claimFresh answers the claims that are the first ones of their keys: in one transaction, in the order of the keys, so
// that two of them never wait for each other in a circle.
func (f *form) claimFresh(ctx context.Context, requests []*dedupstore.Request, answers []answer) error {
	order := make([]*fresh, len(requests))
	for i, r := range requests {
		key := r.Key.String()
		order[i] = &fresh{request: r, answer: &answers[i], id: idOf(key), key: key}
	}
	slices.SortStableFunc(order, func(a, b *fresh) int { return bytes.Compare(a.id, b.id) })
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
		clear(answers)
		var batch pgx.Batch
		batch.Queue(settings)
		for rest := order; len(rest) > 0; {
			n := alike(rest)
			f.store.queueFresh(&batch, rest[:n])
			rest = rest[n:]
		}
		return f.store.pool.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		clear(answers)
	}
	if codeOf(err) == codeLocked && len(order) == 1 {
		answers[0] = inserted
		return nil
	}
	return err
}

// A fresh is a claim that may be the first one of its key.
type fresh struct {
	request *dedupstore.Request
	answer  *answer
	id      []byte
	key     string
}

// mostTogether is how many claims fresh_many.sql makes.
const mostTogether = 16

// alike is how many of the first claims may share a statement.
func alike(claims []*fresh) int {
	n := 1
	for n < min(len(claims), mostTogether) && claims[n].request.Lease == claims[0].request.Lease &&
		claims[n].request.Retention == claims[0].request.Retention {
		n++
	}
	return n
}

// queueFresh makes claims that are alike. The answers of keys that had a record stay as they are.
func (s *Store) queueFresh(batch *pgx.Batch, claims []*fresh) {
	lease := sqlstore.Micros(claims[0].request.Lease)
	life := lease + sqlstore.Micros(claims[0].request.Retention)
	ends := [...]pgtype.Interval{interval(lease), interval(life), interval(life + life/16)}
	var query *pgx.QueuedQuery
	if len(claims) == 1 {
		c := claims[0]
		query = batch.Queue(s.sql.fresh, c.id, c.key, c.request.Owner, ends[0], ends[1], ends[2], printOf(c.request),
			c.request.Trace)
	} else {
		n := len(claims)
		ids, keys, owners := make([][]byte, n), make([]string, n), make([]string, n)
		prints, traces := make([]string, n), make([]string, n)
		for i, c := range claims {
			ids[i], keys[i], owners[i] = c.id, c.key, c.request.Owner
			prints[i], traces[i] = printOf(c.request), c.request.Trace
		}
		query = batch.Queue(s.sql.freshMany, ids, keys, owners, ends[0], ends[1], ends[2], prints, traces)
	}
	query.Query(func(rows pgx.Rows) error {
		var key string
		var fence int64
		_, err := pgx.ForEachRow(rows, []any{&key, &fence}, func() error {
			for _, c := range claims {
				if c.answer.status == "" && c.key == key { // of two claims of a key, the first has it
					*c.answer = answer{status: string(dedupstore.AcquiredRun), found: string(dedupstore.Absent),
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

// claimRest answers the claims at some places.
func (f *form) claimRest(ctx context.Context, requests []*dedupstore.Request, rest []int, answers []answer) error {
	args := f.claimArgs(requests, rest)
	return f.store.again(ctx, func() error {
		return f.store.committed(ctx, f.store.sql.claim, args, func(rows pgx.Rows) error {
			got := 0
			var a answer
			_, err := pgx.ForEachRow(rows, []any{
				&a.n, &a.status, &a.found, &a.fence, &a.attempt, &a.returned, &a.wait, &a.age, &a.trace,
				&a.kind, &a.exhausted, &a.truncated, &a.reason, &a.result, &a.stubs, &a.contents,
			}, func() error {
				answers[rest[a.n-1]] = a
				got++
				a.result, a.stubs, a.contents = nil, nil, nil // the next row must not be read into the same bytes
				return nil
			})
			if err == nil && got != len(rest) {
				err = fmt.Errorf("%d claims got %d answers", len(rest), got)
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

// printOf is a fingerprint as records have it.
func printOf(r *dedupstore.Request) string {
	if r.Fingerprint.IsZero() {
		return ""
	}
	return r.Fingerprint.Scheme + ":" + r.Fingerprint.Sum
}

func (f *form) claimArgs(requests []*dedupstore.Request, places []int) []any {
	n := len(places)
	ids, keys, owners := make([][]byte, n), make([]string, n), make([]string, n)
	leases, retentions, maxima, reruns := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	prints, traces, parks := make([]string, n), make([]string, n), make([]bool, n)
	for i, place := range places {
		r := requests[place]
		keys[i] = r.Key.String()
		ids[i], owners[i] = idOf(keys[i]), r.Owner
		leases[i], retentions[i] = sqlstore.Micros(r.Lease), sqlstore.Micros(r.Retention)
		maxima[i], parks[i], traces[i] = int64(r.MaxAttempts), r.ParkExpired, r.Trace
		prints[i] = printOf(r)
		if r.Rerun <= math.MaxInt64 { // greater ones name no fence that there can be
			reruns[i] = int64(r.Rerun)
		}
	}
	return []any{ids, keys, owners, leases, retentions, prints, maxima, parks, reruns, traces, f.relaxed}
}

// read makes of an answer what the caller gets.
func (a *answer) read(r *dedupstore.Request) (dedupstore.Answer, error) {
	got := dedupstore.Answer{
		Status: dedupstore.Status(a.status), Found: dedupstore.State(a.found), Fence: uint64(a.fence),
		Age: sqlstore.Duration(a.age), Trace: a.trace,
	}
	switch got.Status {
	case dedupstore.AcquiredRun, dedupstore.AcquiredPublish:
		got.Claim = dedupstore.Claim{
			Key: r.Key, Owner: r.Owner, Fence: uint64(a.fence), Attempt: int(a.attempt), Returned: int(a.returned),
			Lease: r.Lease, Retention: r.Retention,
		}
		if got.Status == dedupstore.AcquiredRun {
			return got, nil
		}
	case dedupstore.Done:
	case dedupstore.Busy:
		got.Wait = sqlstore.Duration(a.wait)
		return got, nil
	case dedupstore.Mismatch:
		return got, nil
	case contended:
		return dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running, Wait: contendedWait}, nil
	case foreign:
		return dedupstore.Answer{}, recordError(r.Key, "belongs to another key")
	case odd:
		return dedupstore.Answer{}, recordError(r.Key,
			"was written by another version of the store, or by something else")
	default:
		return dedupstore.Answer{}, recordError(r.Key, fmt.Sprintf("got the answer %q", a.status))
	}
	got.Fence = uint64(a.wait)
	var err error
	got.Outcome, err = a.outcome(r.Key)
	return got, err
}

func (a *answer) outcome(key dedupstore.Key) (dedupstore.Outcome, error) {
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

func recordError(key dedupstore.Key, problem string) error {
	return &dedupstore.RecordError{Key: key.String(), Problem: problem}
}
