package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// FirstInTx implements [dedupstore.FirstTransactor].
func (i *inbox) FirstInTx(
	ctx context.Context, q dedupstore.Request,
	work func(context.Context, dedupstore.Claim) (dedupstore.Settlement, error),
) (dedupstore.Answer, error) {
	if err := q.ValidateFirst(); err != nil {
		return dedupstore.Answer{}, err
	}
	c := dedupstore.Claim{
		Key: q.Key, Owner: q.Owner, Attempt: 1, Lease: q.Lease, Retention: q.Retention, Holder: q.Holder,
	}
	first := newClaiming(&q)
	err := i.repeat(ctx, c, func() error {
		r := &run{store: i.store, claim: c, id: first.id, token: firstToken,
			first: &firstRun{claiming: first, began: time.Now()}}
		return i.once(ctx, r, func(ctx context.Context) (dedupstore.Settlement, error) { return work(ctx, r.claim) })
	})
	if err == errTaken { //nolint:errorlint // never wrapped
		together(ctx, []*claiming{first}, i.claimRest) // there is a record, nearly always
		return i.answer(first)
	}
	return dedupstore.Answer{}, err
}

// errTaken says that a claim has to find out what there is.
var errTaken = errors.New("pgstore: somebody else has the key, or the commit got no answer")

// A firstRun makes its record in its own transaction, as it will be when it has succeeded.
type firstRun struct {
	*claiming
	began time.Time

	beating sync.Mutex
	timer   *time.Timer
	over    bool
}

// firstToken says that a transaction has made its record: nobody else can settle that, or bar the transaction.
const firstToken = "first"

// quick is how long a run takes at most of which the record does not say how long that was.
const quick = time.Second

// args are those of the statement that makes the record.
func (f *firstRun) args() []any {
	life := sqlstore.Micros(f.Lease) + sqlstore.Micros(f.Retention)
	idle := (sqlstore.Micros(f.Lease) + 999) / 1000
	return []any{f.id, f.key, f.Owner, interval(life), interval(life + life/16), f.print, f.Trace, f.holder,
		strconv.FormatInt(idle, 10)}
}

// made reads the fence of the record; it stays zero if there was one before, or somebody else makes it.
func (f *firstRun) made(r *run, row interface{ Scan(dest ...any) error }) error {
	var fence int64
	err := row.Scan(&fence)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	r.claim.Fence = uint64(fence)
	return err
}

// foresaw reports whether the record is already as a settlement wants it.
func (f *firstRun) foresaw(r *run, s *settling) bool {
	return s.plain() && s.result == nil && s.retention == sqlstore.Micros(r.claim.Retention) &&
		time.Since(f.began) < min(quick, r.claim.Lease)
}

// keep sends an empty statement now and then until stop: the server ends the session when it stands still for a lease.
// When its connection is lost the context is cancelled.
func (f *firstRun) keep(
	ctx context.Context, lease time.Duration, s session,
) (inner context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	every := max(lease/3, time.Millisecond)
	f.beating.Lock()
	defer f.beating.Unlock()
	f.timer = time.AfterFunc(every, func() {
		f.beating.Lock()
		defer f.beating.Unlock()
		if f.over {
			return
		}
		bounded, done := context.WithTimeout(ctx, every)
		defer done()
		if err := s.beat(bounded); err != nil {
			cancel(dedupstore.ErrClaimLost)
			return
		}
		f.timer.Reset(every)
	})
	return ctx, func() {
		f.beating.Lock()
		defer f.beating.Unlock()
		f.over = true
		f.timer.Stop()
		cancel(nil)
	}
}
