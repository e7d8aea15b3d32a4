package sqlitestore

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// afterJoin runs a handler that charges in a transaction that joins, commits it, and then does what the test wants.
func afterJoin(t *testing.T, s *Store, policy oncemill.Policy, call oncemill.Call, after func(ctx context.Context) (dedupstore.Outcome, error)) (oncemill.Result, error) {
	t.Helper()
	guard, err := oncemill.NewGuard(s, policy)
	if err != nil {
		t.Fatal(err)
	}
	return guard.Run(t.Context(), call, func(ctx context.Context) (dedupstore.Outcome, error) {
		tx := begin(ctx, t, s.db)
		if err := errors.Join(charge(ctx, tx, "1"), s.Join(ctx, tx), tx.Commit()); err != nil {
			t.Error(err)
		}
		return after(ctx)
	})
}

// wantCharged says that there is one charge, and that duplicates are answered with a success.
func wantCharged(t *testing.T, s *Store) {
	t.Helper()
	if n := charges(t, s.db, "1"); n != 1 {
		t.Errorf("%d charges, want one", n)
	}
	if a := claim(t, s, request("1"), dedupstore.Done); a.Outcome.Kind != dedupstore.Succeeded {
		t.Errorf("the outcome is %s, want a success", a.Outcome.Kind)
	}
	if n := remembered(s); n != 0 {
		t.Errorf("%d runs are still remembered", n)
	}
}

// TestJoin_ARepeatedTransactionIsRefused is for handlers that repeat a transaction whose commit got no answer.
func TestJoin_ARepeatedTransactionIsRefused(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	_, err := afterJoin(t, s, oncemill.Policy{MaxAttempts: 1}, oncemill.Call{Key: request("1").Key}, func(ctx context.Context) (dedupstore.Outcome, error) {
		tx := begin(ctx, t, db)
		defer func() { _ = tx.Rollback() }()
		err := errors.Join(charge(ctx, tx, "1"), s.Join(ctx, tx))
		if !errors.Is(err, ErrSettled) {
			t.Errorf("the second Join returned %v, want ErrSettled", err)
		}
		return dedupstore.Outcome{}, err
	})
	if !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("the run returned %v, want ErrClaimLost, for a redelivery to be answered", err)
	}
	wantCharged(t, s)
}

func TestJoin_AnErrorAfterTheCommitUndoesNothingAndHasNoDeadLetter(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"last attempt": errors.New("too late"),
		"permanent":    oncemill.Permanent(errors.New("too late")),
	} {
		s, db := newStore(t)
		newLedger(t, db)
		call := oncemill.Call{
			Key: request("1").Key,
			DeadLetter: func(dedupstore.Outcome, int, uint64) []dedupstore.Produced {
				return []dedupstore.Produced{{ID: "letter", Topic: "dead", Payload: []byte("1")}}
			},
			Publish: func(context.Context, []dedupstore.Produced) error {
				t.Errorf("%s: a dead letter was published for a charge that was made", name)
				return nil
			},
		}
		_, err := afterJoin(t, s, oncemill.Policy{MaxAttempts: 1}, call, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, failure
		})
		if !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("%s: the run returned %v, want ErrClaimLost, for a redelivery to be answered", name, err)
		}
		wantCharged(t, s)
	}
}

func TestJoin_MessagesOfAHandlerThatJoinedAreRefusedLoudly(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	call := oncemill.Call{Key: request("1").Key, Publish: func(context.Context, []dedupstore.Produced) error {
		t.Error("published without a record of it")
		return nil
	}}
	_, err := afterJoin(t, s, oncemill.Policy{}, call, func(context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "receipt", Topic: "receipts", Payload: []byte("1")}}}, nil
	})
	if _, reported := errors.AsType[*dedupstore.InvalidError](err); !reported || !strings.Contains(err.Error(), "through an outbox") {
		t.Errorf("%v, want an InvalidError that says what to do", err)
	}
	wantCharged(t, s)
}
