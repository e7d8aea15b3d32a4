package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// A Database makes one call of InTx, in one transaction or, one after the other, in several.
type Database interface {
	// Within begins a transaction when one more handler may run. It marks it, so that one which has ended is noticed,
	// makes the records of first runs, and sets their fences. Then it calls run with the handler's context, and returns
	// its error. When it returns, also by a panic, the transaction is over. It or run looks at the claims: see Look.
	Within(ctx context.Context, t *Transaction, run func(inside context.Context, tx Tx) error) error

	// Load reads the records of claims by their IDs, from outside the transaction. If it is about a commit that got no
	// answer, it first makes sure that the transaction is over, or cannot commit any more.
	Load(ctx context.Context, claimed []*Member, unanswered bool) (found map[string]*Row, now time.Time, err error)

	// Claim answers first runs that do not take part. Nearly always there is a record.
	Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult

	// Refused reports whether an error says that the database refused a transaction because of others.
	Refused(err error) bool

	// Full marks an error that says that the database has no room.
	Full(err error) error
}

// A Tx is a transaction in which handlers have run.
type Tx interface {
	// Undo returns why a transaction is rolled back: the failure, or what hides behind it. It returns an *Ended if the
	// handler may have committed.
	Undo(ctx context.Context, failure error) error

	// Commit settles the members that take part by their Finishes, and commits. It returns ErrRefused if a claim does
	// not hold, an *Unanswered if nobody knows whether the transaction has committed, and an *Ended as Undo does. After
	// any other error nothing is committed.
	Commit(ctx context.Context) error
}

var (
	// ErrTaken is returned by Within if no run takes part: a claim has to find out what there is.
	ErrTaken = errors.New("somebody else has the key, or the commit got no answer")

	// ErrRefused says that nothing was committed. It is a conflict if a look shows that the claim holds: a heartbeat
	// renewed it while the settlement took it for expired.
	ErrRefused = errors.New("the settlement found no claim that holds; nothing was committed")

	// errSettled says that the outcomes of all owners are there.
	errSettled = errors.New("the runs were settled before")

	errGone = errors.New("the record is gone")

	errSilent = errors.New("the database has not answered within a lease, or no connection was free")
)

// Unanswered says that a commit got no answer.
type Unanswered struct{ Err error }

func (e *Unanswered) Error() string { return e.Err.Error() }

// Ended says that the handler may have committed: another run could make its effects once more. Err is ErrEnded of
// package dedupstore, which InTx returns. A handler's own error may wrap that of another store.
type Ended struct{ Err error }

func (e *Ended) Error() string { return e.Err.Error() }

// Contended is the answer to a claim whose record somebody has locked: they are about to change it.
var Contended = dedupstore.Answer{
	Status: dedupstore.Busy, Found: dedupstore.Running, Wait: 5 * time.Millisecond,
}

const (
	// LeastCommit is how long a settlement and its commit may take at least, and a look at the record after it, however
	// short the lease is.
	LeastCommit = time.Second

	// EndTimeout bounds a rollback. A connection that does not answer is closed, which rolls back too.
	EndTimeout = 5 * time.Second
)

// A Transaction is what an inbox is asked to do in one.
type Transaction struct {
	Members []*Member
	Claimed []*Member // claims were made before
	Firsts  []*Member // the others
	Stands  *Member   // for all: one that takes part
}

// A Member is a run of a transaction.
type Member struct {
	ID, Key string
	Claim   dedupstore.Claim    // of a first run without fence until the transaction has made its record
	First   *dedupstore.Request // nil: the claim was made before
	Row     *Row                // of a claim, before its settlement
	Finish  dedupstore.Finish   // without a kind until the work has returned
}

// NewTransaction is one that has not begun.
func NewTransaction(runs []dedupstore.TxRun) (*Transaction, error) {
	if err := dedupstore.ValidateRuns(runs); err != nil {
		return nil, err
	}
	t := &Transaction{}
	for _, r := range runs {
		m := &Member{Claim: r.Claim, First: r.First}
		if r.Claim.Fence > math.MaxInt64 {
			return nil, dedupstore.ErrClaimLost
		}
		if q := r.First; q == nil {
			t.Claimed = append(t.Claimed, m)
		} else {
			m.Claim = dedupstore.Claim{
				Key: q.Key, Owner: q.Owner, Attempt: 1, Lease: q.Lease, Retention: q.Retention, Holder: q.Holder,
			}
			t.Firsts = append(t.Firsts, m)
		}
		m.Key = m.Claim.Key.String()
		m.ID = IDOf(m.Key)
		t.Members = append(t.Members, m)
	}
	t.again()
	return t, nil
}

// again forgets what a transaction before has found.
func (t *Transaction) again() {
	t.Stands = slices.Concat(t.Claimed, t.Firsts)[0]
	for _, m := range t.Members {
		m.Finish, m.Row = dedupstore.Finish{}, nil
	}
	for _, m := range t.Firsts {
		m.Claim.Fence = 0
	}
}

// Beginning is ctx for the beginning of a transaction. It bounds that of first runs, which have no heartbeat that would
// end ctx: a database that says nothing must not hold them up.
func (t *Transaction) Beginning(ctx context.Context) (context.Context, context.CancelFunc) {
	if len(t.Claimed) > 0 {
		return ctx, func() {}
	}
	return t.bounded(ctx)
}

func (t *Transaction) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, max(t.Stands.Claim.Lease, LeastCommit), errSilent)
}

// Taking returns the members that take part.
func (t *Transaction) Taking() (taking []*Member) {
	for _, m := range t.Members {
		if m.Claim.Fence != 0 {
			taking = append(taking, m)
		}
	}
	return taking
}

// InTx implements [dedupstore.Transactor]. Its steps are the same for all databases: look at the records, begin, work,
// settle and commit; find out what became of a commit without an answer; repeat what the database refused because of
// others.
func InTx(
	ctx context.Context, db Database, log *slog.Logger, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	t, err := NewTransaction(runs)
	if err != nil {
		return nil, err
	}
	err = t.repeat(ctx, db, log, work)
	taken := errors.Is(err, ErrTaken)
	if err != nil && !taken {
		return nil, err
	}
	taking := len(t.Taking())
	if taking == len(t.Members) && !taken {
		return nil, nil
	}
	if taken { // the commit got no answer if some took part
		for _, m := range t.Firsts {
			m.Claim.Fence = 0
		}
	}
	bounded, cancel := t.bounded(ctx)
	defer cancel()
	answers, err := t.answers(bounded, db)
	if taking > 0 { // a claim finds out what could not be answered
		err = nil
	}
	return answers, err
}

// answers are the answers of Claim to first runs that do not take part.
func (t *Transaction) answers(ctx context.Context, db Database) ([]dedupstore.Answer, error) {
	answers := make([]dedupstore.Answer, len(t.Members))
	var requests []dedupstore.Request
	var places []int
	for n, m := range t.Members {
		if m.Claim.Fence == 0 {
			requests, places = append(requests, *m.First), append(places, n)
		}
	}
	var failure error
	for n, result := range db.Claim(ctx, requests) {
		if result.Err != nil {
			failure, result.Answer = result.Err, Contended
		}
		answers[places[n]] = result.Answer
	}
	return answers, failure
}

// repeat does work in transactions until the database does not refuse one because of others.
func (t *Transaction) repeat(ctx context.Context, db Database, log *slog.Logger, work dedupstore.TxWork) error {
	pauses := pace.Pace{Shortest: 2 * time.Millisecond, Longest: 100 * time.Millisecond}
	var conflict *dedupstore.ConflictError
	for range Tries {
		if ctx.Err() != nil {
			break
		}
		err := t.once(ctx, db, work)
		switch e := err.(type) { //nolint:errorlint // never wrapped
		case *dedupstore.UndecidedError:
			return err
		case *Ended:
			log.ErrorContext(ctx, "dedupstore: the inbox's transaction ended before its run; what was committed has "+
				"no outcome", "key", t.Stands.Key, "error", e.Err)
			return e.Err
		}
		if err != ErrRefused && !db.Refused(err) { //nolint:errorlint // never wrapped
			return db.Full(err)
		}
		conflict = &dedupstore.ConflictError{Err: err}
		pace.Sleep(ctx, pace.Jitter(pauses.Next()))
	}
	if conflict != nil {
		return conflict
	}
	return context.Cause(ctx)
}

// once does work in one transaction.
func (t *Transaction) once(ctx context.Context, db Database, work dedupstore.TxWork) error {
	t.again()
	err := db.Within(ctx, t, func(inside context.Context, tx Tx) error {
		taking := t.Taking()
		if len(taking) == 0 {
			return ErrTaken
		}
		if len(t.Claimed) == 0 {
			t.Stands = taking[0]
		}
		claims := make([]dedupstore.Claim, len(taking))
		for n, m := range taking {
			claims[n] = m.Claim
		}
		settlements, err := work(inside, claims)
		limit := max(t.Stands.Claim.Lease, LeastCommit)
		if err == nil {
			err = dedupstore.ValidateFinishes(settlements, len(claims))
		}
		if err != nil {
			limit = EndTimeout
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		if err != nil {
			return tx.Undo(bounded, err)
		}
		for n, m := range taking {
			m.Finish = settlements[n].(dedupstore.Finish)
		}
		return tx.Commit(bounded)
	})
	if err == nil || errors.Is(err, errSettled) {
		return nil
	}
	bounded, cancel := t.bounded(context.WithoutCancel(ctx))
	defer cancel()
	switch unanswered, is := err.(*Unanswered); { //nolint:errorlint // never wrapped
	case err == ErrRefused: //nolint:errorlint // never wrapped
		if err = t.Look(bounded, db); errors.Is(err, errSettled) { // by a copy of this transaction
			return nil
		}
		return cmp.Or(err, ErrRefused)
	case !is:
		return err
	case len(t.Claimed) == 0:
		return ErrTaken
	default:
		return resolve(bounded, db, t.Stands, unanswered.Err)
	}
}

// resolve finds out what became of a transaction whose commit got no answer. One claim tells for all.
func resolve(ctx context.Context, db Database, m *Member, cause error) error {
	pauses := pace.Pace{Shortest: 10 * time.Millisecond, Longest: time.Second}
	for claimed := []*Member{m}; ; {
		found, now, err := db.Load(ctx, claimed, true)
		var v Verdict
		if err == nil {
			v, err = Judge(claimed, found, now)
		}
		switch {
		case err == nil && v == Settled:
			return nil
		case err == nil && v == Open:
			return fmt.Errorf("dedupstore: the transaction was not committed: %w", cause)
		case err == nil && v == Lost:
			return dedupstore.ErrClaimLost
		case unreadable(err), !pace.Sleep(ctx, pace.Jitter(pauses.Next())):
			return &dedupstore.UndecidedError{Err: errors.Join(cause, cmp.Or(err, errGone))}
		}
	}
}

// unreadable reports whether a record cannot be read, which does not pass.
func unreadable(err error) bool {
	_, is := errors.AsType[*dedupstore.RecordError](err)
	return is
}

// A Verdict is what records say of claims.
type Verdict int

const (
	Lost    Verdict = iota // one is lost
	Gone                   // one has no record
	Settled                // by the transaction, or a copy of it
	Open                   // all hold
)

// Look reads what became of the claims that were made before. It returns nil if all hold, and else why there is nothing
// to do.
func (t *Transaction) Look(ctx context.Context, db Database) error {
	if len(t.Claimed) == 0 {
		return dedupstore.ErrClaimLost // as Judge says of first runs
	}
	found, now, err := db.Load(ctx, t.Claimed, false)
	if err != nil {
		return err
	}
	return t.Judge(found, now)
}

// Judge is Look at records that were read. First runs are lost with the transaction that has made their records.
func (t *Transaction) Judge(found map[string]*Row, now time.Time) error {
	switch v, err := Judge(t.Claimed, found, now); {
	case err != nil:
		return err
	case v == Settled && len(t.Firsts) == 0:
		return errSettled
	case v == Open:
		return nil
	}
	return dedupstore.ErrClaimLost
}

// Judge says what records say of claims. They become the members' Rows.
func Judge(claimed []*Member, found map[string]*Row, now time.Time) (Verdict, error) {
	verdicts := make([]Verdict, len(claimed))
	for n, m := range claimed {
		rec := found[m.ID]
		if m.Row = rec; rec == nil {
			verdicts[n] = Gone
			continue
		}
		if rec.Err != nil {
			return Lost, rec.Err
		}
		settled := rec.Decided == m.Claim.Fence && slices.Contains(rec.Settled, m.Claim.Owner)
		switch {
		case settled && rec.State != dedupstore.Retryable:
			if m.Finish.Outcome.Kind == "" || m.Finish.Outcome.Kind == rec.Outcome.Kind {
				verdicts[n] = Settled
			}
		case !now.Before(rec.Expires):
			verdicts[n] = Gone
		case OwnedBy(rec.Stored, m.Claim) && rec.State == dedupstore.Running:
			verdicts[n] = Open
		}
	}
	if v := slices.Compact(verdicts); len(v) == 1 {
		return v[0], nil
	}
	return Lost, nil
}
