package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// Join settles the run of the context as succeeded, in a transaction of the handler's own in the store's database. It
// is for handlers under the leased form. The handler commits, and then returns nil: its writes and its outcome are
// there together, or not at all.
//
// A handler that joins returns no result and no messages, because the outcome is written already. A result is dropped.
// With messages the guard's Finish is refused with an error, and they are not published: use an outbox in the same
// transaction.
//
// The commit ends the run. An error that the handler returns after it undoes nothing, and a redelivery gets the
// success.
//
// Keep the transaction far shorter than a lease. Join writes, so a transaction that began with a read may be refused
// (SQLITE_BUSY_SNAPSHOT): open the database with _txlock=immediate. After any error roll the transaction back. Join
// returns
//
//   - dedupstore.ErrClaimLost, if another owner took over: roll back, and return it;
//   - [ErrSettled], if the run has joined before: roll back, and return it, because only the record knows whether the
//     first transaction committed;
//   - an error that says so, if SQLite ended the transaction after a statement whose error was not returned;
//   - [ErrNoRun], [ErrUnguarded] or [ErrInboxRun], if there is nothing to settle;
//   - or the error of the database.
func (s *Store) Join(ctx context.Context, tx *sql.Tx) error {
	if tx == nil {
		return &dedupstore.InvalidError{Package: "sqlitestore", Field: "tx", Problem: "is nil"}
	}
	if _, found := txctx.From[*running](ctx); found {
		return ErrInboxRun
	}
	claim, found := txctx.From[*dedupstore.Claim](ctx)
	switch {
	case !found:
		return ErrNoRun
	case claim.Fence == 0:
		return ErrUnguarded
	}
	if err := s.usable(ctx); err != nil {
		return err
	}
	err := s.join(ctx, tx, *claim)
	if err != nil && !errors.Is(err, dedupstore.ErrClaimLost) && !errors.Is(err, ErrSettled) && !isRecordError(err) {
		return fmt.Errorf("sqlitestore: join: %w", err)
	}
	return err
}

func (s *Store) join(ctx context.Context, tx *sql.Tx, c dedupstore.Claim) error {
	if _, err := tx.ExecContext(ctx, "BEGIN"); err == nil { // there is none to begin one in
		_, err := tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		return errors.Join(errOver, err)
	}
	// Take the write lock before looking at the record, so that nobody takes the claim over in between.
	if _, err := tx.StmtContext(ctx, s.statements.touch).ExecContext(ctx); err != nil {
		return err
	}
	now := clock()
	rec, err := load(ctx, tx.StmtContext(ctx, s.statements.load), c.Key.String(), now)
	if err == nil {
		err = rec.Err
	}
	if err != nil {
		return err
	}
	succeeded := dedupstore.Finish{
		Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: c.Retention,
		Took: sqlstore.Duration(now.UnixMicro() - int64(c.Fence)),
	}
	next, err := sqlstore.Settle(rec.Stored, c, succeeded, now)
	switch {
	case err != nil:
		return err
	case next == nil:
		return ErrSettled
	}
	rec.Stored = *next
	if err := s.save(ctx, tx, rec); err != nil {
		return err
	}
	s.runs.enter(c, now.Add(c.Lease))
	return nil
}
