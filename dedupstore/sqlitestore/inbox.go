package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
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
	return sqlstore.InTx(ctx, s, s.config.Logger, runs, work)
}

// TakesFirst implements [dedupstore.Transactor]. Others would wait for the write lock to learn of a record.
func (inbox) TakesFirst() bool { return false }

// leastWait is how long a run waits for the write lock if its lease is shorter.
const leastWait = 5 * time.Second

// A runTx is the transaction of runs.
type runTx struct {
	*lockedTx
	store   *Store
	members []*sqlstore.Member
	detach  func() error // from the run's context; or why that has ended before
}

// Within implements [sqlstore.Database]. It looks at the claims when it has the write lock.
func (s inbox) Within(
	ctx context.Context, t *sqlstore.Transaction, run func(context.Context, sqlstore.Tx) error,
) error {
	waitCtx, done := context.WithTimeoutCause(ctx, max(t.Stands.Claim.Lease, leastWait), errLocked)
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
	tx, err := s.begin(waitCtx, txCtx)
	if err != nil {
		return notBegun(err)
	}
	within := &running{store: s.Store, tx: tx.Tx}
	defer within.over.Store(true)
	defer tx.abort() // also when work panics

	now := clock()
	found, err := loadAll(ctx, tx.StmtContext(ctx, s.statements.load), t.Claimed, now)
	if err != nil {
		return ended(ctx, err)
	}
	if err := t.Judge(found, now); err != nil {
		return err
	}
	if err := s.mark(ctx, tx, t.Claimed); err != nil {
		return ended(ctx, fmt.Errorf("sqlitestore: begin: %w", err))
	}
	detach := func() error {
		if attached() {
			return nil
		}
		return context.Cause(ctx)
	}
	return run(txctx.With(txctx.With(ctx, tx.Tx), within), &runTx{tx, s.Store, t.Claimed, detach})
}

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
// it stays only if the handler commits. Then nobody may run the message again: neither this process (Undo), nor another
// that claims the key later (answer).
const markSQL = `UPDATE "{table}" SET decided = fence WHERE number = ?`

// mark prepares a transaction to be told apart.
func (s *Store) mark(ctx context.Context, t *lockedTx, members []*sqlstore.Member) error {
	_, err := t.ExecContext(ctx, "SAVEPOINT "+savepoint)
	for _, m := range members {
		if err == nil {
			_, err = t.StmtContext(ctx, s.statements.mark).ExecContext(ctx, m.Row.Number)
		}
	}
	return err
}

// Undo implements [sqlstore.Tx]. If the handler committed, or may have, another run could repeat the effects.
func (t *runTx) Undo(ctx context.Context, failure error) error {
	ctx = context.WithoutCancel(ctx)
	if _, err := t.ExecContext(ctx, "ROLLBACK TO "+savepoint); err == nil {
		return failure
	}
	t.abort()
	ctx, cancel := context.WithTimeout(ctx, t.members[0].Claim.Lease)
	defer cancel()
	found, err := loadAll(ctx, t.store.statements.load, t.members, clock())
	if err != nil {
		return endedError(errors.Join(failure, err))
	}
	for _, m := range t.members { // some may have been taken over
		rec := found[m.ID]
		if rec.Err != nil || sqlstore.OwnedBy(rec.Stored, m.Claim) && committedAlone(rec.Stored) {
			return endedError(errors.Join(failure, rec.Err))
		}
	}
	return failure
}

// Commit implements [sqlstore.Tx].
func (t *runTx) Commit(ctx context.Context) error {
	if err := t.detach(); err != nil {
		return t.Undo(ctx, err)
	}
	ctx = context.WithoutCancel(ctx) // an interrupted statement would end the transaction
	// Busy is the savepoint, and so there, if the handler has left rows of a write open. The commit closes them.
	if _, err := t.ExecContext(ctx, "RELEASE "+savepoint); err != nil && !isBusy(err) {
		return endedError(err)
	}
	now := clock()
	for _, m := range t.members {
		m.Row.Expires = now.Add(time.Hour) // nobody could write it meanwhile, heartbeats neither
		next, err := m.Row.Settle(m.Claim, m.Finish, now)
		if err != nil {
			return err
		}
		m.Row.Stored = *next
		err = t.store.save(ctx, t.Tx, m.Row)
		switch {
		case isBusy(err):
			return &conflictError{fmt.Errorf("sqlitestore: settle: %w", err)}
		case errors.Is(err, sql.ErrTxDone):
			return endedError(err)
		case err != nil:
			return fmt.Errorf("sqlitestore: settle: %w", err)
		}
	}
	err := t.store.commit(t.lockedTx)
	if err == nil {
		return nil
	}
	failure := fmt.Errorf("sqlitestore: commit: %w", err)
	if isBusy(err) {
		return &conflictError{failure}
	}
	return &sqlstore.Unanswered{Err: failure} // which does not say whether it is on disk
}

// Load implements [sqlstore.Database]. A transaction ends with its commit.
func (s inbox) Load(
	ctx context.Context, claimed []*sqlstore.Member, _ bool,
) (found map[string]*sqlstore.Row, now time.Time, err error) {
	now = clock()
	found, err = loadAll(ctx, s.statements.load, claimed, now)
	return found, now, err
}

// Refused implements [sqlstore.Database].
func (inbox) Refused(err error) bool {
	_, conflict := err.(*conflictError) //nolint:errorlint // never wrapped
	return conflict
}

// Full implements [sqlstore.Database].
func (inbox) Full(err error) error { return noRoom(err) }

// loadAll reads the records of runs.
func loadAll(
	ctx context.Context, q querier, members []*sqlstore.Member, now time.Time,
) (map[string]*sqlstore.Row, error) {
	found := map[string]*sqlstore.Row{}
	for _, m := range members {
		rec, err := load(ctx, q, m.Key, now)
		if err != nil {
			return nil, err
		}
		found[m.ID] = rec
	}
	return found, nil
}
