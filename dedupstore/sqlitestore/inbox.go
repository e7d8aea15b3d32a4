package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/txctx"
)

// An inbox is a Store whose runs settle in a transaction.
type inbox struct{ *Store }

var _ interface {
	dedupstore.Transactor
	dedupstore.Inspector
	dedupstore.Checker
} = inbox{}

// Inbox returns the transactional form of the store, for handlers whose effects are in the same database. Claims are
// those of the store. A run begins a transaction with the database's write lock, and the handler gets it with [Tx].
// Give it to an outbox of the same database by InSQL of package sqliteoutbox, which does not look into the context. The
// store writes the outcome in it and commits.
//
// SQLite has one writer, so one handler at a time runs in a database, whatever the number of processes. All other
// writers wait for it, heartbeats of other claims included. Keep handlers short, and let them wait for no network. A
// run that waits for the write lock for as long as its lease, or 5 s if that is longer, gives up with a
// [*dedupstore.ConflictError]. So make the lease longer than all handlers that may wait for each other take together.
//
// A program that commits row by row leaves others only the moment between two commits. Claims and heartbeats then wait
// for seconds, and some fail, which is logged as a store that is down. Let such a program write many rows in a
// transaction and pause between them. When SQLite copies its grown log to the file, single claims wait for the disk.
//
// After a crash a key stays with its holder until the lease ends. A claim that takes it over may have to wait for a
// transaction of the old holder.
func (s *Store) Inbox() dedupstore.Transactor { return inbox{s} }

// running is what the context of a run in an inbox carries.
type running struct {
	store *Store
	tx    *sql.Tx
	over  atomic.Bool // contexts may outlive the run
}

// Tx returns the transaction of a run in an inbox. It panics outside such a run. Write through it only: a write past it
// waits for the handler's own transaction until SQLite gives up or the context ends.
//
// Do not commit it or roll it back. Return the errors of its statements: SQLite ends a transaction on a full disk or an
// interrupted statement, and later writes are outside of it. The store notices ([dedupstore.ErrEnded]) and parks the
// run as unknown, but what was committed stays. It does not notice if SQLite has ended the transaction and the handler
// returns an error: the run is repeated, and what was written after that end is written again. Writes to an attached
// database are not part of the transaction: under WAL each file commits by itself, the outcome's file first.
func Tx(ctx context.Context) *sql.Tx {
	r, found := txctx.From[*running](ctx)
	if !found {
		panic(txctx.NoTx("sqlitestore: Tx outside a run of an inbox: give Store.Inbox() to the guard or consumer, " +
			"and pass the context that the handler got"))
	}
	return r.tx
}

// InTx implements [dedupstore.Transactor]. It does not call work again because of what work returns: a transaction that
// has the write lock is not refused because of others.
func (s inbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	claims, err := dedupstore.ClaimsOf(runs)
	if err == nil {
		err = s.usable(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		s.runs.enter(c, forever)
		defer s.runs.leave(c)
	}
	for tries := 1; ; tries++ {
		err := s.attempt(ctx, claims, work)
		conflict, again := err.(*conflictError) //nolint:errorlint // never wrapped
		switch {
		case !again:
			return nil, noRoom(err)
		case tries == conflicts:
			return nil, &dedupstore.ConflictError{Err: conflict.error}
		case !pace.Sleep(ctx, lastPause):
			return nil, context.Cause(ctx)
		}
	}
}

// TakesFirst implements [dedupstore.Transactor]. Others would wait for the write lock to learn of a record.
func (inbox) TakesFirst() bool { return false }

// conflicts is how often a run is tried when the database refuses it because of others.
const conflicts = 5

// attempt is one transaction.
func (s *Store) attempt(ctx context.Context, claims []dedupstore.Claim, work dedupstore.TxWork) error {
	waitCtx, done := context.WithTimeoutCause(ctx, max(claims[0].Lease, leastWait), errLocked)
	defer done()
	if err := s.gate.enterLast(waitCtx); err != nil {
		return notBegun(err)
	}
	defer s.gate.leave()

	// The transaction ends with ctx while work runs, and not any more when it is settled.
	txCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	attached := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer attached()
	t, err := s.begin(waitCtx, txCtx)
	if err != nil {
		return notBegun(err)
	}
	within := &running{store: s, tx: t.Tx}
	defer within.over.Store(true)
	defer t.abort() // also when work panics

	records, err := s.unsettled(ctx, t, claims)
	if err != nil || records == nil {
		return err
	}
	if err := s.mark(ctx, t, records); err != nil {
		return ended(ctx, fmt.Errorf("sqlitestore: begin: %w", err))
	}
	settlements, err := work(txctx.With(txctx.With(ctx, t.Tx), within), claims)
	switch {
	case err != nil:
		return s.undone(context.WithoutCancel(ctx), t, claims, err)
	case !attached():
		return s.undone(context.WithoutCancel(ctx), t, claims, context.Cause(ctx))
	}
	if err := dedupstore.ValidateFinishes(settlements, len(claims)); err != nil {
		return err
	}
	return s.finish(context.WithoutCancel(ctx), t, records, claims, settlements)
}

// unsettled returns the records of claims that hold, and none if the Finishes of all of them are there already.
func (s *Store) unsettled(ctx context.Context, t *lockedTx, claims []dedupstore.Claim) ([]*record, error) {
	stmt, now := t.StmtContext(ctx, s.statements.load), clock()
	records, settled := make([]*record, len(claims)), 0
	for i, c := range claims {
		rec, err := load(ctx, stmt, c.Key.String(), now)
		switch {
		case err != nil:
			return nil, ended(ctx, err)
		case rec.settledBy(c.Owner) && rec.Decided == c.Fence && rec.State != dedupstore.Retryable:
			settled++
		case !rec.ownedBy(c) || rec.State != dedupstore.Running:
			return nil, dedupstore.ErrClaimLost
		}
		records[i] = rec
	}
	switch settled {
	case 0:
		return records, nil
	case len(claims):
		return nil, nil
	}
	return nil, dedupstore.ErrClaimLost
}

// leastWait is how long a run waits for the write lock if its lease is shorter.
const leastWait = 5 * time.Second

// notBegun is the error of a run whose work was not called.
func notBegun(err error) error {
	err = fmt.Errorf("sqlitestore: begin: %w", err)
	if errors.Is(err, errLocked) {
		return &dedupstore.ConflictError{Err: err}
	}
	return err
}

// savepoint exists as long as a run's transaction does. It shows the store that it still writes in that transaction.
const savepoint = "oncemill_run"

// markSQL marks the records of runs in their transaction. A run's end overwrites its mark and a rollback removes it, so
// it stays only if the handler commits. Then nobody may run the message again: neither this process (undone), nor
// another that claims the key later (record.claim).
const markSQL = `UPDATE "{table}" SET decided = fence WHERE number = ?`

// mark prepares a transaction to be told apart.
func (s *Store) mark(ctx context.Context, t *lockedTx, records []*record) error {
	_, err := t.ExecContext(ctx, "SAVEPOINT "+savepoint)
	for _, rec := range records {
		if err == nil {
			_, err = t.StmtContext(ctx, s.statements.mark).ExecContext(ctx, rec.number)
		}
	}
	return err
}

// undone rolls back and returns why runs have failed. If the handler committed, or may have, it returns ErrEnded,
// because another run could repeat the effects.
func (s *Store) undone(ctx context.Context, t *lockedTx, claims []dedupstore.Claim, failure error) error {
	if _, err := t.ExecContext(ctx, "ROLLBACK TO "+savepoint); err == nil {
		return failure
	}
	t.abort()
	ctx, cancel := context.WithTimeout(ctx, claims[0].Lease)
	defer cancel()
	for _, c := range claims { // some may have been taken over
		rec, err := load(ctx, s.statements.load, c.Key.String(), clock())
		if err != nil || rec.ownedBy(c) && rec.State == dedupstore.Running && rec.Decided == rec.Fence {
			return endedError(errors.Join(failure, err))
		}
	}
	return failure
}

// finish settles and commits.
func (s *Store) finish(ctx context.Context, t *lockedTx, records []*record, claims []dedupstore.Claim,
	settlements []dedupstore.Settlement) error {
	// Busy is the savepoint, and so there, if the handler has left rows of a write open. The commit closes them.
	if _, err := t.ExecContext(ctx, "RELEASE "+savepoint); err != nil && !isBusy(err) {
		return endedError(err)
	}
	now := clock()
	for i, rec := range records {
		rec.Expires = now.Add(time.Hour) // nobody could write it meanwhile, heartbeats neither
		next, err := rec.Settle(claims[i], settlements[i], now)
		if err != nil {
			return err
		}
		rec.Stored = *next
		err = s.save(ctx, t.Tx, rec)
		switch {
		case isBusy(err):
			return &conflictError{fmt.Errorf("sqlitestore: settle: %w", err)}
		case errors.Is(err, sql.ErrTxDone):
			return endedError(err)
		case err != nil:
			return fmt.Errorf("sqlitestore: settle: %w", err)
		}
	}
	began := time.Now()
	err := s.commit(t)
	if err == nil {
		return nil
	}
	failure := fmt.Errorf("sqlitestore: commit: %w", err)
	if isBusy(err) {
		return &conflictError{failure}
	}
	return s.resolve(ctx, claims[0], failure, began.Add(claims[0].Lease))
}

// resolve reads what became of a commit that ended in an error, which does not say whether it is on disk. It reads
// until a run's record tells, at most until the lease ends.
func (s *Store) resolve(ctx context.Context, c dedupstore.Claim, failure error, until time.Time) error {
	for pause := firstPause; ; pause = min(2*pause, time.Second) {
		readCtx, cancel := context.WithDeadline(ctx, until)
		rec, err := load(readCtx, s.statements.load, c.Key.String(), clock())
		cancel()
		switch {
		case err == nil && rec.settledBy(c.Owner):
			return nil
		case err == nil && rec.ownedBy(c):
			return failure
		case err == nil && rec.State != "":
			return dedupstore.ErrClaimLost // another took over, which it could not have after the commit
		case err == nil:
			err = errGone
		}
		if time.Until(until) < pause || isRecordError(err) {
			return &dedupstore.UndecidedError{Err: errors.Join(failure, err)}
		}
		_ = pace.Sleep(ctx, pause)
	}
}
