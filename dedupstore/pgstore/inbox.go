package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
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
	unsure  bool         // one of them not here, or not for this transaction
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
	ours  bool            // the claim was granted here, and this is its first transaction: no need to look
	first *claiming       // nil: the claim was made before
	kind  dedupstore.Kind // of the outcome; empty: the work has not returned
}

// takes notes which members take part, and returns their claims.
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

// ready comes before the settlements. Outside of the transaction that the inbox began it fails, by a division by zero.
// The message is acknowledged on the strength of this commit, whatever the handler has set for its effects.
const ready = `SELECT 1 / (current_setting('oncemill.tx', true) IS NOT DISTINCT FROM 'inbox')::integer,
	set_config('enable_seqscan', 'off', true)` + beSafe

// settlements are the statements before the commit. The first is ready.
func (r *run) settlements(settlements []dedupstore.Settlement) []statement {
	all := []statement{{query: ready}}
	for i, m := range r.taking {
		f := settlements[i].(dedupstore.Finish)
		switch {
		case m.first == nil:
			all = append(all, statement{r.store.sql.finish, finishArgs(r.token, dedupstore.Running, m.claim, f)})
		case !r.foresaw(m, f):
			all = append(all, statement{r.store.sql.finish, finishArgs(firstToken, dedupstore.Finished, m.claim, f)})
		}
	}
	return all
}

// stopped explains the error of a settlement, before which so many statements have been made.
func stopped(made int, err error) error {
	switch {
	case codeOf(err) != codeDivision:
		return err
	case made == 0:
		return fmt.Errorf("%w: %w", ErrTxEnded, err)
	}
	return fmt.Errorf("%w: %w", errRefused, err)
}

// A session is a transaction in the way that the handler uses it.
type session interface {
	// context returns the handler's context.
	context(ctx context.Context) context.Context

	// beat sends an empty statement, beside the handler, unless the connection is in use. Its error says that the
	// connection is lost.
	beat(ctx context.Context) error

	// commit settles by Finishes, and commits. ctx bounds it.
	commit(ctx context.Context, settlements []dedupstore.Settlement) error

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
		return i.once(ctx, r, work)
	})
	switch {
	case errors.Is(err, errTaken):
		lost := len(r.taking) > 0 // the answer to a commit
		for n := range members {
			members[n].claim.Fence = 0
		}
		answers, err := i.answers(ctx, members)
		if lost {
			err = nil // of nothing that is known not to be committed
		}
		return answers, err
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
	if err := dedupstore.ValidateRuns(runs); err != nil {
		return nil, err
	}
	members := make([]member, len(runs))
	for n := range runs {
		r := &runs[n]
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
		m := &members[n]
		m.kind = ""
		if m.first != nil {
			m.claim.Fence = 0
			continue
		}
		r.claimed, r.unsure = true, r.unsure || !m.ours
		m.ours = false // another transaction looks
		if r.stands == nil {
			r.stands = m
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
	if r.unsure {
		if v, err := i.look(ctx, r.members); v != open {
			free()
			return cmp.Or(err, v.end())
		}
	}
	s, err := i.begin(ctx, r)
	if err != nil {
		free()
	}
	if err != nil {
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
	if err := dedupstore.ValidateFinishes(settlements, len(claims)); err != nil {
		return err
	}
	for n, m := range r.taking {
		m.kind = settlements[n].(dedupstore.Finish).Outcome.Kind
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(r.stands.claim.Lease, leastCommit))
	defer cancel()
	err = s.commit(bounded, settlements)
	switch {
	case err == nil:
		i.note(ctx, used)
		return nil
	case errors.Is(err, errRefused):
		end()
		v, failed := i.look(bounded, r.members)
		return cmp.Or(failed, v.end())
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

// A verdict is what records say of the claims of a transaction.
type verdict int

const (
	lost    verdict = iota // one is lost, or nobody knows it
	settled                // by the transaction, or a copy of it
	open
)

// end is how a transaction ended that has not committed.
func (v verdict) end() error {
	switch v {
	case settled:
		return nil
	case open: // a heartbeat renewed the claim while the settlement took it for expired
		return errRefused
	}
	return dedupstore.ErrClaimLost
}

// look reads what became of the claims that were made before. First runs are lost with their transaction.
func (i *inbox) look(ctx context.Context, members []member) (v verdict, err error) {
	var claimed []member
	var ids [][]byte
	for _, m := range members {
		if m.first == nil {
			claimed, ids = append(claimed, m), append(ids, m.id)
		}
	}
	err = i.store.again(ctx, func() error {
		found := map[string]*sqlstore.Row{}
		var now time.Time
		var b pgx.Batch
		b.Queue(useIndexes)
		load(&b, i.store.sql.load, ids, found, &now)
		err := i.store.pool.SendBatch(ctx, &b).Close()
		v = judge(claimed, found, now)
		return err
	})
	switch {
	case err != nil:
		return lost, i.store.failed("look at the record", err)
	case v == settled && len(claimed) < len(members):
		return lost, nil
	}
	return v, nil
}

// judge says what the records of claims say of them.
func judge(claimed []member, found map[string]*sqlstore.Row, now time.Time) verdict {
	all := map[verdict]int{}
	for _, m := range claimed {
		rec := cmp.Or(found[string(m.id)], &sqlstore.Row{})
		switch {
		case rec.Decided == m.claim.Fence && slices.Contains(rec.Settled, m.claim.Owner):
			if m.kind == "" || m.kind == rec.Outcome.Kind {
				all[settled]++
			}
		case sqlstore.OwnedBy(rec.Stored, m.claim) && rec.State == dedupstore.Running && now.Before(rec.Expires):
			all[open]++
		}
	}
	for _, v := range []verdict{settled, open} {
		if len(claimed) > 0 && all[v] == len(claimed) {
			return v
		}
	}
	return lost
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

// refusal explains why PostgreSQL neither settled nor committed.
func (i *inbox) refusal(err error) error {
	switch codeOf(err) {
	case codeNoTransaction:
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

// resolve finds out what became of a transaction whose commit got no answer. One record tells for all.
func (i *inbox) resolve(ctx context.Context, r *run, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.stands.claim.Lease)
	defer cancel()
	pauses := pace.Pace{Shortest: 10 * time.Millisecond, Longest: time.Second}
	for {
		switch v, err := i.decide(ctx, r); {
		case err == nil && v == open:
			return fmt.Errorf("pgstore: the transaction was not committed: %w", cause)
		case err == nil:
			return v.end()
		case !pace.Sleep(ctx, pace.Jitter(pauses.Next())):
			return &dedupstore.UndecidedError{Err: cause}
		}
	}
}

// decide waits for the end of a transaction, and bars it if it has not settled: its last statements may still be on
// their way to the server.
func (i *inbox) decide(ctx context.Context, r *run) (verdict, error) {
	m := *r.stands
	var barred bool
	err := i.store.again(ctx, func() error {
		var b pgx.Batch
		b.Queue(useIndexes + beSafe)
		b.Queue(i.store.sql.bar, m.id, m.claim.Owner, int64(m.claim.Fence), r.token).Exec(
			func(tag pgconn.CommandTag) error {
				barred = tag.RowsAffected() > 0
				return nil
			})
		return i.store.pool.SendBatch(ctx, &b).Close()
	})
	if err != nil || barred {
		return open, err
	}
	v, err := i.look(ctx, []member{m})
	if v == open {
		err = cmp.Or(err, errRefused)
	}
	return v, err
}

const barSQL = `UPDATE {records} x SET barred = $4::text
WHERE x.id = $1::bytea AND x.owner = $2::text AND x.fence = $3::bigint AND x.state = 'running'`
