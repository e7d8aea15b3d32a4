package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// An inbox is the form that settles in the handler's transaction.
type inbox struct {
	*form
	begin  func(ctx context.Context, r *run) (session, error)
	unused atomic.Int32 // runs that have committed without a statement of the handler; negative: one had some
}

// A calling is one call of InTx.
type calling struct {
	inbox *inbox
	sure  bool   // the claims were granted here, and no transaction has begun: no need to look
	token string // names the last transaction for those who bar it
}

// A run is one transaction of an inbox.
type run struct {
	*sqlstore.Transaction
	inbox   *inbox
	store   *Store
	session session
	stop    func(context.Context) // beating; the context bounds the wait for the connection
	end     func() (open bool)    // of the session
	began   time.Time             // before anything was sent
	token   string                // names the transaction for those who bar it
	used    atomic.Bool           // the handler has made a statement
	calls   sync.RWMutex          // calls of the handler hold it for reading; locked when they may not begin
	wire    sync.RWMutex          // as calls; locked by a heartbeat
	open    atomic.Int32          // rows and results that the handler has not closed

	conflict atomic.Pointer[error] // that PostgreSQL answered to a statement of the handler
}

func (i *inbox) newRun(t *sqlstore.Transaction) *run {
	r := &run{Transaction: t, inbox: i, store: i.store, began: time.Now(), token: firstToken}
	if len(t.Claimed) > 0 {
		r.token = ids.Token()
	}
	return r
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
func (r *run) settlements() []statement {
	all := []statement{{query: ready}}
	for _, m := range r.Taking() {
		token, was := r.token, dedupstore.Running
		if m.First != nil {
			token, was = firstToken, dedupstore.Finished
		}
		if m.First == nil || !r.foresaw(m) {
			all = append(all, statement{r.store.sql.finish, finishArgs(token, was, m.Claim, m.Finish)})
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
	return sqlstore.ErrRefused
}

// ended says that the handler ended the transaction, beside which something else failed.
func ended(failure error) error {
	return &sqlstore.Ended{Err: fmt.Errorf("%w: %w", ErrTxEnded, failure)}
}

// A session is a transaction in the way that the handler uses it.
type session interface {
	// context returns the handler's context.
	context(ctx context.Context) context.Context

	// beat sends an empty statement, beside the handler, unless the connection is in use. Its error says that the
	// connection is lost.
	beat(ctx context.Context) error

	// commit settles, and commits. ctx bounds it.
	commit(ctx context.Context) error

	// end rolls back what is not committed, and gives the connection back. It reports false if the handler has ended
	// the transaction, and may have committed it. The handler cannot use the transaction after it. It does not heed the
	// end of ctx, and takes EndTimeout at most.
	end(ctx context.Context) (open bool)
}

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
	c := &calling{inbox: i, sure: true}
	for _, r := range runs {
		if r.First == nil && !time.Now().Before(i.store.granted.take(r.Claim.Owner)) {
			c.sure = false
		}
	}
	return sqlstore.InTx(ctx, c, i.store.cfg.Logger, runs, work)
}

// TakesFirst implements [dedupstore.Transactor].
func (*inbox) TakesFirst() bool { return true }

// Within implements [sqlstore.Database].
func (c *calling) Within(
	ctx context.Context, t *sqlstore.Transaction, work func(context.Context, sqlstore.Tx) error,
) error {
	i := c.inbox
	free, err := i.store.share.take(ctx, i.store.cfg.Logger)
	if err != nil {
		return err
	}
	defer free()
	if len(t.Claimed) > 0 && !c.sure {
		if err := t.Look(ctx, c); err != nil {
			return err
		}
	}
	r := i.newRun(t)
	c.sure, c.token = false, r.token
	beginning, cancel := t.Beginning(ctx)
	defer cancel()
	if r.session, err = i.begin(beginning, r); err != nil {
		return i.store.failed("begin", cmp.Or(context.Cause(beginning), err))
	}
	// It ends after the transaction: then database/sql closes the rows that a handler has left open, beside it.
	outer, lose := context.WithCancelCause(i.store.share.slots.taken(ctx))
	defer lose(nil)
	r.end = sync.OnceValue(func() (open bool) { return r.session.end(ctx) })
	defer r.end() // also when work panics
	stop := r.keep(outer, lose)
	r.stop = func(ctx context.Context) {
		if q, is := r.session.(*sqlSession); is { // a beat may wait for a statement that the handler has left under way
			defer context.AfterFunc(ctx, q.lose)()
		}
		stop()
	}
	defer func() { // also when work panics
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlstore.EndTimeout)
		defer cancel()
		r.stop(bounded)
	}()
	return work(r.session.context(outer), r)
}

// Undo implements [sqlstore.Tx].
func (r *run) Undo(ctx context.Context, failure error) error {
	r.stop(ctx)
	if !r.end() { // another run could make the effects once more
		return ended(failure)
	}
	return r.because(failure)
}

// Commit implements [sqlstore.Tx].
func (r *run) Commit(ctx context.Context) error {
	r.stop(ctx)
	used := r.used.Load()
	err := r.session.commit(ctx)
	switch {
	case err == nil:
		r.inbox.note(ctx, used)
		return nil
	case errors.Is(err, ErrTxAborted):
		return r.because(err)
	case errors.Is(err, ErrTxEnded):
		return &sqlstore.Ended{Err: err}
	case errors.Is(err, sqlstore.ErrRefused), conflicts(err):
		return err
	case errors.Is(err, errLost), errors.Is(err, errBusy): // unless the handler has committed by itself
		if !r.end() {
			return ended(errAfterwards)
		}
		return err
	case refused(err):
		if codeOf(err) == codeNoTransaction {
			return ended(err)
		}
		return r.because(r.inbox.refusal(err))
	}
	return &sqlstore.Unanswered{Err: err}
}

// Load implements [sqlstore.Database].
func (c *calling) Load(
	ctx context.Context, claimed []*sqlstore.Member, unanswered bool,
) (found map[string]*sqlstore.Row, now time.Time, err error) {
	s, ids, barred := c.inbox.store, make([][]byte, len(claimed)), true
	for n, m := range claimed {
		ids[n] = []byte(m.ID)
	}
	if unanswered {
		barred, err = c.bar(ctx, claimed[0])
	}
	if err == nil {
		err = s.again(ctx, func() error {
			found = map[string]*sqlstore.Row{}
			var b pgx.Batch
			b.Queue(useIndexes)
			load(&b, s.sql.load, ids, found, &now)
			return s.pool.SendBatch(ctx, &b).Close()
		})
	}
	if err != nil {
		return nil, now, s.failed("look at the record", err)
	}
	for _, rec := range found {
		if !barred && rec.State == dedupstore.Running && sqlstore.OwnedBy(rec.Stored, claimed[0].Claim) {
			return nil, now, errNotBarred
		}
	}
	return found, now, nil
}

// bar waits for the end of a transaction, and bars it if it has not settled: its last statements may still be on their
// way to the server.
func (c *calling) bar(ctx context.Context, m *sqlstore.Member) (barred bool, err error) {
	s := c.inbox.store
	err = s.again(ctx, func() error {
		var b pgx.Batch
		b.Queue(useIndexes + beSafe)
		b.Queue(s.sql.bar, []byte(m.ID), m.Claim.Owner, int64(m.Claim.Fence), c.token).Exec(
			func(tag pgconn.CommandTag) error {
				barred = tag.RowsAffected() > 0
				return nil
			})
		return s.pool.SendBatch(ctx, &b).Close()
	})
	return barred, err
}

const barSQL = `UPDATE {records} x SET barred = $4::text
WHERE x.id = $1::bytea AND x.owner = $2::text AND x.fence = $3::bigint AND x.state = 'running'`

// Claim implements [sqlstore.Database].
func (c *calling) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results, asked := make([]dedupstore.ClaimResult, len(requests)), make([]*claiming, len(requests))
	for n := range requests {
		asked[n] = newClaiming(&requests[n], &results[n])
	}
	c.inbox.claim(ctx, asked, true)
	return results
}

// Refused implements [sqlstore.Database].
func (*calling) Refused(err error) bool { return conflicts(err) }

// Full implements [sqlstore.Database].
func (*calling) Full(err error) error { return noRoom(err) }

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
	if codeOf(err) == codeAborted {
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
