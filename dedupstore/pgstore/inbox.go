package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// An inbox is the form that settles in the handler's transaction.
type inbox struct {
	*form
	begin  func(ctx context.Context, r *run) (session, error)
	unused atomic.Int32 // runs that have committed without a statement of the handler; negative: one had some
}

// A run is one transaction of an inbox.
type run struct {
	store   *Store
	members []member
	taking  []*member    // part
	stands  *member      // for all: one that takes part
	claimed bool         // some claims were made before
	began   time.Time    // before anything was sent
	token   string       // names the transaction for those who bar it
	used    atomic.Bool  // the handler has made a statement
	calls   sync.RWMutex // calls of the handler hold it for reading; locked when they may not begin
	wire    sync.RWMutex // as calls; locked by a heartbeat
	open    atomic.Int32 // rows and results that the handler has not closed

	conflict atomic.Pointer[error] // that PostgreSQL answered to a statement of the handler
}

// A member is a run of a guard in a transaction.
type member struct {
	claim dedupstore.Claim // of a first run without fence until its record is made
	id    []byte
	ours  bool      // the claim was granted here, and this is its first transaction: no need to look
	first *claiming // nil: the claim was made before
}

// takes notes who takes part, and returns their claims.
func (r *run) takes() []dedupstore.Claim {
	claims := make([]dedupstore.Claim, 0, len(r.members))
	for i := range r.members {
		if m := &r.members[i]; m.claim.Fence != 0 {
			r.taking, claims = append(r.taking, m), append(claims, m.claim)
		}
	}
	return claims
}

// mark is set when an inbox's transaction begins and ends with it. A settlement that does not find it is outside that
// transaction. With it comes the limit in which a session that stands still is ended.
const mark = `SELECT set_config('oncemill.tx', 'inbox', true),
	set_config('idle_in_transaction_session_timeout', $1::text, true)`

// A statement is one of the inbox's own.
type statement struct {
	query string
	args  []any
}

// looks make sure, at the beginning of a transaction, that there is something to do for claims that were made before.
func (r *run) looks() (all []statement) {
	for _, m := range r.members {
		if m.first == nil && !m.ours {
			all = append(all, statement{r.store.sql.begin, m.lookArgs()})
		}
	}
	return all
}

func (m *member) lookArgs() []any { return []any{m.id, m.claim.Owner, int64(m.claim.Fence)} }

// settlements are the statements before the commit.
func (r *run) settlements(settled []*settling) (all []statement) {
	sql := &r.store.sql
	for i, m := range r.taking {
		switch {
		case settled[i] == nil:
		case m.first == nil:
			all = append(all, statement{sql.settleIn, settled[i].args(r.token)})
		default:
			all = append(all, statement{sql.settleIn, settled[i].args(firstToken)})
		}
	}
	if len(all) == 0 {
		all = append(all, statement{sql.finishFirst,
			append(r.stands.lookArgs(), sqlstore.Micros(r.stands.claim.Retention))})
	}
	return all
}

// A session is a transaction in the way that the handler uses it.
type session interface {
	// context returns the handler's context.
	context(ctx context.Context) context.Context

	// beat sends an empty statement, beside the handler, unless the connection is in use. Its error says that the
	// connection is lost.
	beat(ctx context.Context) error

	// commit settles and commits. ctx bounds it. Nil is a settlement that is there already.
	commit(ctx context.Context, settled []*settling) error

	// end rolls back what is not committed, and gives the connection back. It reports false if the handler has ended
	// the transaction, and may have committed it. The handler cannot use the transaction after it. It does not heed the
	// end of ctx, and takes endTimeout at most.
	end(ctx context.Context) (open bool)
}

const (
	// maxTries is how often work is done because PostgreSQL refuses its transactions.
	maxTries = 10

	// endTimeout bounds a rollback. A connection that does not answer is closed, which rolls back too.
	endTimeout = 5 * time.Second

	// leastCommit is how long a settlement and its commit may take at least, however short the lease is.
	leastCommit = time.Second
)

// Check implements [dedupstore.Checker].
func (i *inbox) Check(ctx context.Context) (dedupstore.Report, error) { return i.store.Check(ctx) }

// Claim implements [dedupstore.Store].
func (i *inbox) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	start := time.Now()
	results := i.form.Claim(ctx, requests)
	for j, r := range results {
		if r.Answer.Status == dedupstore.AcquiredRun {
			i.store.granted.add(requests[j].Owner, start.Add(requests[j].Lease))
		}
	}
	return results
}

// InTx implements [dedupstore.Transactor].
func (i *inbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	members, err := i.membersOf(runs)
	if err != nil {
		return nil, err
	}
	var r *run
	err = i.repeat(ctx, members[0].claim.Key, func() error {
		r = i.newRun(members)
		for n := range members {
			members[n].ours = false
		}
		return i.once(ctx, r, work)
	})
	switch {
	case errors.Is(err, errTaken):
		for n := range members { // a commit may have got no answer
			members[n].claim.Fence = 0
		}
		return i.answers(ctx, members)
	case err != nil:
		return nil, err
	case len(r.taking) < len(members) && len(r.taking) > 0:
		answers, _ := i.answers(ctx, r.members) // what is committed is: a claim finds out what could not be answered
		return answers, nil
	}
	return nil, nil
}

// TakesFirst implements [dedupstore.Transactor].
func (*inbox) TakesFirst() bool { return true }

func (i *inbox) membersOf(runs []dedupstore.TxRun) ([]member, error) {
	members := make([]member, len(runs))
	for n := range runs {
		r := &runs[n]
		if err := r.Validate(); err != nil {
			return nil, err
		}
		if r.First != nil {
			members[n].first = newClaiming(r.First, new(dedupstore.ClaimResult))
			members[n].claim, members[n].id = claimOf(r.First), members[n].first.id
			continue
		}
		if r.Claim.Fence > math.MaxInt64 {
			return nil, dedupstore.ErrClaimLost
		}
		members[n].claim, members[n].id = r.Claim, idOf(r.Claim.Key.String())
		members[n].ours = time.Now().Before(i.store.granted.take(r.Claim.Owner))
	}
	return members, nil
}

func (i *inbox) newRun(members []member) *run {
	r := &run{store: i.store, members: members, began: time.Now(), token: firstToken}
	for n := range members {
		switch m := &members[n]; {
		case m.first != nil:
			m.claim.Fence = 0
		case r.stands == nil:
			r.claimed, r.stands = true, m
		}
	}
	if r.claimed {
		r.token = ids.Token()
	} else {
		r.stands = &r.members[0]
	}
	return r
}

// repeat does work in transactions until PostgreSQL does not refuse one because of others.
func (i *inbox) repeat(ctx context.Context, key dedupstore.Key, once func() error) error {
	pauses := pace.Pace{Shortest: 2 * time.Millisecond, Longest: 100 * time.Millisecond}
	var conflict *dedupstore.ConflictError
	for range maxTries {
		if ctx.Err() != nil {
			break
		}
		err := once()
		if errors.Is(err, ErrTxEnded) {
			i.store.cfg.Logger.ErrorContext(ctx, "pgstore: a handler ended the inbox's transaction by itself; what it "+
				"committed has no outcome", "key", key.String())
			return err
		}
		if !conflicts(err) {
			return noRoom(err)
		}
		conflict = &dedupstore.ConflictError{Err: err}
		pace.Sleep(ctx, pace.Jitter(pauses.Next()))
	}
	if conflict != nil {
		return conflict
	}
	return context.Cause(ctx)
}

// once runs work in one transaction.
func (i *inbox) once(ctx context.Context, r *run, work dedupstore.TxWork) error {
	free, err := i.store.share.take(ctx, i.store.cfg.Logger)
	if err != nil {
		return err
	}
	s, err := i.begin(ctx, r)
	if err != nil {
		free()
	}
	switch {
	case codeOf(err) == codeSettled:
		return i.settledBefore(ctx, r)
	case codeOf(err) == codeLost:
		return dedupstore.ErrClaimLost
	case err != nil:
		return i.store.failed("begin", err)
	}
	// It ends after the transaction: then database/sql closes the rows that a handler has left open, beside it.
	outer, lose := context.WithCancelCause(i.store.share.slots.taken(ctx))
	defer lose(nil)
	end := sync.OnceValue(func() (open bool) {
		defer free()
		return s.end(ctx)
	})
	defer end() // also when work panics
	claims := r.takes()
	if len(claims) == 0 {
		return errTaken
	}
	stop := r.keep(outer, s, lose)
	defer stop()
	settlements, err := work(s.context(outer), claims)
	stop()
	if err != nil {
		if !end() { // another run could make the effects once more
			return fmt.Errorf("%w: %w", ErrTxEnded, err)
		}
		return r.because(err)
	}
	used := r.used.Load()
	settled, err := r.finishing(claims, settlements)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(r.stands.claim.Lease, leastCommit))
	defer cancel()
	err = s.commit(bounded, settled)
	switch {
	case err == nil:
		i.note(ctx, used)
		return nil
	case codeOf(err) == codeSettled:
		end()
		return i.settledBefore(ctx, r)
	case errors.Is(err, ErrTxAborted):
		return r.because(err)
	case errors.Is(err, ErrTxEnded), conflicts(err):
		return err
	case errors.Is(err, errLost), errors.Is(err, errBusy): // unless the handler has committed by itself
		if !end() {
			err = fmt.Errorf("%w: %w", ErrTxEnded, errAfterwards)
		}
		return err
	case refused(err):
		return r.because(i.refusal(err))
	}
	end()
	if !r.claimed {
		return errTaken
	}
	return i.resolve(ctx, r, err)
}

// settledBefore is the answer of a transaction of which one run is settled, by a copy of the transaction.
func (i *inbox) settledBefore(ctx context.Context, r *run) error {
	if len(r.members) == 1 {
		return nil
	}
	for _, m := range r.members {
		if m.first != nil {
			return dedupstore.ErrClaimLost
		}
		err := i.store.again(ctx, func() error {
			_, err := i.store.pool.Exec(ctx, i.store.sql.begin, m.lookArgs()...)
			return err
		})
		switch {
		case codeOf(err) == codeSettled:
		case err == nil, codeOf(err) == codeLost:
			return dedupstore.ErrClaimLost
		default:
			return i.store.failed("begin", err)
		}
	}
	return nil
}

// fewRuns is how many runs without a statement may be by chance.
const fewRuns = 100

// note warns once of handlers that all write elsewhere: their effects are not committed together with the outcome.
func (i *inbox) note(ctx context.Context, used bool) {
	if used {
		i.unused.Store(math.MinInt32)
	} else if i.unused.Add(1) == fewRuns {
		i.store.cfg.Logger.WarnContext(ctx, "pgstore: handlers of this inbox wrote nothing in its transaction: "+
			"pass ctx to pgstore.Tx or SQLTx and write with that, or use the leased store", "runs", fewRuns)
	}
}

// finishing are the settlements that may be committed with effects: without an outcome the next run would make them
// again. It leaves out those that first runs have foreseen.
func (r *run) finishing(claims []dedupstore.Claim, settlements []dedupstore.Settlement) ([]*settling, error) {
	if err := dedupstore.ValidateFinishes(settlements, len(claims)); err != nil {
		return nil, err
	}
	settled := make([]*settling, len(claims))
	for n, c := range claims {
		if m := r.taking[n]; m.first != nil && r.foresaw(m, settlements[n].(dedupstore.Finish)) {
			continue
		}
		var err error
		if settled[n], err = newSettling(c, settlements[n].(dedupstore.Finish)); err != nil {
			return nil, err
		}
	}
	return settled, nil
}

// refusal explains why PostgreSQL neither settled nor committed.
func (i *inbox) refusal(err error) error {
	switch codeOf(err) {
	case codeLost:
		return dedupstore.ErrClaimLost
	case codeTxEnded, codeNoTransaction:
		return fmt.Errorf("%w: %w", ErrTxEnded, err)
	case codeAborted:
		return fmt.Errorf("%w: %w", ErrTxAborted, err)
	}
	err = i.store.failed("settle and commit", err)
	if setup, ok := errors.AsType[*dedupstore.SetupError](err); ok {
		setup.Problem += "; or has the handler changed the search path (then name Config.Schema) or the role of the " +
			"transaction?"
	}
	return err
}

// refused reports whether an error of a commit says for certain that nothing was committed: the server, not something
// before it, refused without ending the session. An error of the connection never says so, whatever it looks like.
func refused(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR" && e.Code != codeUnknownCompletion &&
		e.Code[:min(2, len(e.Code))] != "08"
}

// resolve reads what became of a transaction whose commit got no answer. One record tells for all.
func (i *inbox) resolve(ctx context.Context, r *run, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.stands.claim.Lease)
	defer cancel()
	pauses := pace.Pace{Shortest: 10 * time.Millisecond, Longest: time.Second}
	for {
		var verdict string
		err := i.store.again(ctx, func() error {
			args := append([]any{r.token}, r.stands.lookArgs()...)
			return i.store.pool.QueryRow(ctx, i.store.sql.decide, args...).Scan(&verdict)
		})
		switch {
		case err == nil && verdict == "settled":
			return nil
		case err == nil && verdict == "open":
			return fmt.Errorf("pgstore: the transaction was not committed: %w", cause)
		case err == nil:
			return dedupstore.ErrClaimLost
		case !pace.Sleep(ctx, pace.Jitter(pauses.Next())):
			return &dedupstore.UndecidedError{Err: cause}
		}
	}
}
