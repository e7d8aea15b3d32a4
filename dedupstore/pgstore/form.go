package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A form is the leased contract on the records, with claims and heartbeats that wait for the disk or do not.
type form struct {
	store   *Store
	relaxed bool
	claims  lane[*dedupstore.Request, answer]
	settles lane[*settling, string]
}

func newForm(s *Store, relaxed bool) *form {
	f := &form{store: s, relaxed: relaxed}
	f.claims.exec, f.settles.exec = f.execClaims, f.execSettles
	f.settles.large = (*settling).large
	return f
}

const (
	// takeoverPatience is how long a claim that could take a record over tries again while somebody has it locked. Who
	// finds a live lease does not wait at all.
	takeoverPatience = 30 * time.Millisecond

	// contendedWait is the wait of the Busy that follows.
	contendedWait = 5 * time.Millisecond
)

func (s *form) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

// Claim implements [dedupstore.Store].
func (f *form) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if err := r.Validate(); err != nil {
		return dedupstore.Answer{}, err
	}
	a, err := f.claims.do(ctx, &r)
	if err == nil && a.status == contended {
		a, err = f.claimAgain(ctx, &r)
	}
	if err != nil {
		return dedupstore.Answer{}, f.store.failed("claim", err)
	}
	return a.read(&r)
}

// claimAgain tries a claim again that found a record locked by whoever is just about to change it.
func (f *form) claimAgain(ctx context.Context, r *dedupstore.Request) (a answer, err error) {
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 8 * time.Millisecond}
	for start := time.Now(); ; {
		if !pace.Sleep(ctx, pauses.Next()) {
			return answer{}, ctx.Err()
		}
		if a, err = f.claims.do(ctx, r); err != nil || a.status != contended || time.Since(start) > f.store.patience {
			return a, err
		}
	}
}

func (s *form) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, s.extendOne)
}

// Extend implements [dedupstore.Store].
func (f *form) extendOne(ctx context.Context, x dedupstore.Extension) error {
	c, lease := x.Claim, x.Lease

	if err := sqlstore.ValidateExtend(c, lease); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.Fence > math.MaxInt64 {
		return dedupstore.ErrClaimLost // no store of this kind has granted it
	}
	return f.verdict(ctx, "extend", func() (string, error) {
		verdict, err := f.extend(ctx, c, lease)
		if verdict == settled && !f.store.joined.has(c.Owner) {
			verdict = lost
		}
		return verdict, err
	})
}

func (f *form) extend(ctx context.Context, c dedupstore.Claim, lease time.Duration) (verdict string, err error) {
	id := idOf(c.Key.String())
	err = f.store.again(ctx, func() error {
		args := []any{id, c.Owner, int64(c.Fence), sqlstore.Micros(lease), sqlstore.Micros(c.Retention)}
		return f.store.pool.QueryRow(ctx, f.store.sql.extend, args...).Scan(&verdict)
	})
	return verdict, err
}

func (s *form) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

// Settle implements [dedupstore.Store].
func (f *form) settleOne(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	s, err := newSettling(idOf(c.Key.String()), c, settlement)
	if err != nil {
		return err
	}
	f.store.granted.take(c.Owner)
	err = f.verdict(ctx, "settle", func() (string, error) {
		verdict, err := f.settles.do(ctx, s)
		if err == nil && verdict == repeated && s.step == "publishing" && f.store.joined.has(c.Owner) {
			// Its Join may have been rolled back, and the answer to this very Finish been lost: then there is a lease.
			if verdict, err = f.extend(ctx, c, c.Lease); verdict == settled {
				err = sqlstore.ErrJoinedOutputs
			}
		}
		return verdict, err
	})
	if err == nil || errors.Is(err, dedupstore.ErrClaimLost) || errors.Is(err, sqlstore.ErrJoinedOutputs) {
		f.store.joined.take(c.Owner)
	}
	return err
}

// Verdicts of the functions.
const (
	contended = "contended" // somebody has the record locked
	lost      = "lost"
	repeated  = "repeated"
	settled   = "settled" // of a heartbeat: there is nothing to extend, as this owner has finished
)

// verdict asks until the record is not locked, or ctx ends. It is locked for long by a transaction only that settles
// this very claim.
func (f *form) verdict(ctx context.Context, what string, ask func() (string, error)) error {
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 50 * time.Millisecond}
	for {
		verdict, err := ask()
		switch {
		case err != nil:
			return f.store.failed(what, err)
		case verdict == lost:
			return dedupstore.ErrClaimLost
		case verdict != contended:
			return nil
		case !pace.Sleep(ctx, pauses.Next()):
			return fmt.Errorf("pgstore: %s: a transaction has the record locked: %w", what, ctx.Err())
		}
	}
}

// repetitions is how often a statement of the store itself is tried that PostgreSQL refuses because of others. That
// happens only where the database has another isolation than READ COMMITTED by default.
const repetitions = 10

// again repeats a statement that PostgreSQL refused because of others. Where a server only reads, the pool has to
// connect anew: after a failover its name may have led to the old primary for a moment, and the connections would stay
// there.
func (s *Store) again(ctx context.Context, statement func() error) (err error) {
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 20 * time.Millisecond}
	for range repetitions {
		if err = statement(); err == nil || !conflicts(err) || !pace.Sleep(ctx, pace.Jitter(pauses.Next())) {
			break
		}
	}
	if codeOf(err) == codeReadOnly { // at most once a second: the pool is the caller's, who may only read
		now, last := time.Now().UnixNano(), s.share.left.Load()
		if now-last >= int64(time.Second) && s.share.left.CompareAndSwap(last, now) {
			s.pool.Reset()
		}
	}
	return err
}
