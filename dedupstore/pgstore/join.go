package pgstore

import (
	"context"
	"database/sql"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// Join settles the run that ctx carries as succeeded, without a result, in a transaction of the handler. Call it in the
// handler of a Guard over the leased store, before the handler commits. Effects and outcome then commit together, and
// not at all if another owner took over meanwhile. When the handler then returns nil, the Guard finds the outcome in
// the record. An error that it returns after the commit does not undo it.
//
// Join last, commit at once, and return. From Join to commit the record is locked: nobody can take the key over, and
// heartbeats change nothing. Statements use indexes where they can (enable_seqscan is off). If a transaction that
// stayed open for longer than the lease is rolled back, another owner may come at once. Work after the commit is under
// no lease.
//
// A joined run has no result, and duplicates get none. Write what it produces to an outbox in the transaction. If the
// handler returns messages, the guard's Finish is refused with an error, and they are not published.
//
// Errors: ErrClaimLost of package dedupstore if the claim does not hold any more, or is of another store; ErrSettled,
// ErrNoRun, ErrBypassed, ErrInInbox. After a wait for another Join of the same run it is ErrClaimLost, too. After any
// error the handler rolls back. After ErrClaimLost, ErrSettled and errors of PostgreSQL the transaction has failed
// and cannot commit.
func (s *Store) Join(ctx context.Context, tx pgx.Tx) error {
	if isnil.Nil(tx) {
		return &dedupstore.InvalidError{Package: "pgstore", Field: "tx", Problem: "is nil"}
	}
	return s.join(ctx, func(query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	})
}

// JoinSQL is Join for a transaction of database/sql, by a driver that returns pgx's errors (pgx/stdlib).
func (s *Store) JoinSQL(ctx context.Context, tx *sql.Tx) error {
	if tx == nil {
		return &dedupstore.InvalidError{Package: "pgstore", Field: "tx", Problem: "is nil"}
	}
	return s.join(ctx, func(query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

func (s *Store) join(ctx context.Context, exec func(query string, args ...any) error) error {
	claim, found := txctx.From[*dedupstore.Claim](ctx)
	if !found {
		return ErrNoRun
	}
	if claim.Fence == 0 {
		return ErrBypassed
	}
	r, inside := txctx.From[*run](ctx)
	if inside && slices.ContainsFunc(r.Members, func(m *sqlstore.Member) bool { return m.Claim == *claim }) {
		return ErrInInbox
	}
	if claim.Fence > math.MaxInt64 {
		return dedupstore.ErrClaimLost
	}
	if err := claim.Validate(); err != nil {
		return err
	}
	f := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: claim.Retention}
	args := finishArgs("", dedupstore.Running, *claim, f)
	err := exec(useIndexes + beSafe)
	if err == nil {
		err = exec(s.sql.join, args[:len(args)-1]...) // it knows how long the run took
	}
	switch codeOf(err) {
	case codeDivision:
		return dedupstore.ErrClaimLost
	case codeNotANumber:
		return ErrSettled
	}
	if err != nil {
		return s.failed("join", err)
	}
	s.joined.add(claim.Owner, time.Time{})
	return nil
}

const (
	// joinTook is how long a run took, in milliseconds. Its fence says about when it began.
	joinTook = `(extract(epoch FROM statement_timestamp()) * 1000)::bigint - x.fence / 1000`

	// joinVerdict is no number if the run has been settled, by this transaction or one before.
	joinVerdict = `CASE WHEN count(*) = 0 AND (SELECT x.decided = $4::bigint AND $3::text = ANY (x.settled)
		FROM {records} x WHERE x.id = $2::bytea) THEN ('settled' || count(*))::bigint ELSE 1 / count(*) END`
)
