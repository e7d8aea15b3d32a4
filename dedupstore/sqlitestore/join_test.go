package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/txctx"
)

func begin(ctx context.Context, t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// joining is a run under the leased form that charges in a transaction of its own and joins.
func joining(t *testing.T, s *Store, db *sql.DB, policy oncemill.Policy, before, after func(ctx context.Context, tx *sql.Tx) error) (oncemill.Result, error) {
	t.Helper()
	guard, err := oncemill.NewGuard(s, policy)
	if err != nil {
		t.Fatal(err)
	}
	return guard.Run(t.Context(), oncemill.Call{Key: request("1").Key}, func(ctx context.Context) (dedupstore.Outcome, error) {
		tx := begin(context.WithoutCancel(ctx), t, db)
		defer func() { _ = tx.Rollback() }()
		if err := errors.Join(charge(ctx, tx, "1"), before(ctx, tx), s.Join(ctx, tx)); err != nil {
			return dedupstore.Outcome{}, err
		}
		return dedupstore.Outcome{}, after(ctx, tx)
	})
}

func nothing(context.Context, *sql.Tx) error { return nil }

func commit(_ context.Context, tx *sql.Tx) error { return tx.Commit() }

func TestJoin_EffectAndOutcomeAreCommittedTogether(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	crash := errors.New("the process died here")
	_, err := joining(t, s, db, oncemill.Policy{}, nothing, func(context.Context, *sql.Tx) error { return crash })
	if !errors.Is(err, crash) || charges(t, db, "1") != 0 {
		t.Fatalf("%v, %d charges, want none", err, charges(t, db, "1"))
	}
	mustExec(t, db, `UPDATE oncemill_dedup SET due_at = 0`)
	res, err := joining(t, s, db, oncemill.Policy{}, nothing, commit)
	if err != nil || res.Duplicate || charges(t, db, "1") != 1 {
		t.Errorf("%+v, %v, %d charges, want one", res, err, charges(t, db, "1"))
	}
	// As if the process had died before the guard could finish.
	c := claim(t, s, request("2"), dedupstore.AcquiredRun).Claim
	ctx := txctx.With(t.Context(), &c)
	tx := begin(t.Context(), t, db)
	if err := errors.Join(charge(ctx, tx, "2"), s.Join(ctx, tx), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	claim(t, s, request("2"), dedupstore.Done)
	if err := dedupstore.SettleOne(ctx, s, c, succeeded); err != nil {
		t.Errorf("the guard's Finish: %v, want a repetition", err)
	}
}

func TestJoin_HeartbeatsAreSafeBeforeAndAfterTheCommit(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	const lease = 4 * time.Second
	long := func(ctx context.Context) error {
		timer := time.NewTimer(5 * lease / 4)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	res, err := joining(t, s, db, oncemill.Policy{Lease: lease}, nothing, func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(long(ctx), tx.Commit(), long(ctx))
	})
	if err != nil || res.Duplicate || charges(t, db, "1") != 1 {
		t.Errorf("%+v, %v, %d charges, want one", res, err, charges(t, db, "1"))
	}
	if n := remembered(s); n != 0 {
		t.Errorf("%d runs are still remembered", n)
	}
}

func TestJoin_ZombieIsRefused(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	mustExec(t, db, `UPDATE oncemill_dedup SET lease_until = 0`)
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	tx := begin(t.Context(), t, db)
	if err := s.Join(txctx.With(t.Context(), &c), tx); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("%v, want ErrClaimLost", err)
	}
}

func TestJoin_SaysWhenThereIsNothingToSettle(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	tx := begin(t.Context(), t, db)
	if err := s.Join(t.Context(), tx); !errors.Is(err, ErrNoRun) {
		t.Errorf("outside a run: %v", err)
	}
	if err := s.Join(txctx.With(t.Context(), &dedupstore.Claim{Key: request("1").Key}), tx); !errors.Is(err, ErrUnguarded) {
		t.Errorf("bypassed: %v", err)
	}
	if _, isInvalid := errors.AsType[*dedupstore.InvalidError](s.Join(t.Context(), nil)); !isInvalid {
		t.Error("no transaction is not refused")
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	guard, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = guard.Run(t.Context(), oncemill.Call{Key: request("1").Key}, func(ctx context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{}, s.Join(ctx, Tx(ctx))
	})
	if !errors.Is(err, ErrInboxRun) {
		t.Errorf("in an inbox: %v", err)
	}
	if err := s.Join(txctx.With(t.Context(), &dedupstore.Claim{Key: request("1").Key, Fence: 1}), tx); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("a transaction that is over: %v", err)
	}
}

// TestJoin_OutsideATransactionThereIsNoOutcome has a handler that goes on when SQLite has ended its transaction: the charge is gone, and
// a success would be committed by itself.
func TestJoin_OutsideATransactionThereIsNoOutcome(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	_, err := joining(t, s, db, oncemill.Policy{}, func(ctx context.Context, tx *sql.Tx) error {
		_, _ = tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO ledger (entry, id) SELECT 7, 'x' UNION ALL SELECT 7, 'x'`) // the mistake
		return nil
	}, commit)
	if _, again := answertest.Is(err, oncemill.StatusRetry); !again || !errors.Is(err, errOver) {
		t.Errorf("the run ended in %v, want it to be tried again because the transaction was over", err)
	}
	mustExec(t, db, `UPDATE oncemill_dedup SET due_at = 0`)
	if _, err := joining(t, s, db, oncemill.Policy{}, nothing, commit); err != nil {
		t.Errorf("the next run: %v", err)
	}
	wantCharged(t, s)
}
