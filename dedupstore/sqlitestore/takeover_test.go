package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// busyInbox runs handlers that take as long each, one after the other without a pause, until the function that it returns.
func busyInbox(t *testing.T, s *Store, name string, each time.Duration) (stop func()) {
	t.Helper()
	guard, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for worker := range 3 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, err := guard.Run(ctx, oncemill.Call{Key: request(fmt.Sprint(name, worker, "-", i)).Key}, func(ctx context.Context) (dedupstore.Outcome, error) {
					_ = pace.Sleep(ctx, each)
					return dedupstore.Outcome{}, nil
				})
				if err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	eventually(t, "the inbox is at work", func() bool {
		return count(t, s.db, `SELECT count(*) FROM oncemill_dedup WHERE key LIKE ? AND state = 'done'`, "%:"+name+"%") > 0
	})
	return func() { cancel(); all.Wait() }
}

// redeliveries claims a dead run's key as redeliveries do, until it is taken over.
func redeliveries(t *testing.T, s *Store, id string, most int) (n int) {
	t.Helper()
	for n = 1; n <= most; n++ {
		a, err := dedupstore.ClaimOne(t.Context(), s, request(id))
		if err != nil {
			t.Fatal(err)
		}
		if a.Status == dedupstore.AcquiredRun {
			break
		}
		_ = pace.Sleep(t.Context(), a.Wait)
	}
	return n
}

func TestInbox_ABusyDatabaseGivesUpTheKeysOfTheDead(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	claim(t, s, request("dead"), dedupstore.AcquiredRun)
	expire(t, db)
	defer busyInbox(t, s, "busy", 150*time.Millisecond)()
	start := time.Now()
	if n := redeliveries(t, s, "dead", 3); n > 1 {
		t.Errorf("it was not taken over by the first redelivery, but by number %d (4: by none)", n)
	}
	t.Logf("taken over after %v", time.Since(start))
}

func TestInbox_ABusyDatabaseOfAnotherProcessGivesUpTheKeysOfTheDead(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	claim(t, s, request("dead"), dedupstore.AcquiredRun)
	expire(t, db)
	other, err := New(openAt(t, fileOf(t, db)), Config{}) // it knows nothing of the first one's runs
	if err != nil {
		t.Fatal(err)
	}
	defer busyInbox(t, other, "busy", 20*time.Millisecond)()
	start := time.Now()
	n := redeliveries(t, s, "dead", 100)
	t.Logf("taken over after %v by redelivery %d", time.Since(start), n)
	if n > 20 {
		t.Errorf("taken over by redelivery %d, want one of the first", n)
	}
}

func TestInbox_TwinIsAnsweredWithTheOutcomeAsSoonAsItIsVisible(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	s.commit = func(lt *lockedTx) error {
		err := lt.commit()
		claim(t, s, request("1"), dedupstore.Done) // the run has not come back from its commit
		return err
	}
	c, err := inTx(t, s, request("1"), settlesWith(succeeded))
	if err != nil {
		t.Error(err)
	}
	claim(t, s, request("1"), dedupstore.Done)
	if n := remembered(s); n != 0 {
		t.Errorf("%d runs are still remembered, such as %v", n, c.Key)
	}
}

func TestInbox_AZombieDoesNotKeepTheHoldersHeartbeatWaiting(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	old := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	expire(t, db)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	var zombie func() error
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(context.Context) (dedupstore.Settlement, error) {
		zombie = background(func() error { return dedupstore.InTxOne(t.Context(), s.Inbox(), old, settlesWith(succeeded)) })
		eventually(t, "the zombie waits for the write lock", func() bool {
			return len(s.gate.line) == 1
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return succeeded, dedupstore.ExtendOne(ctx, s, beat(c))
	})
	if err != nil {
		t.Errorf("the holder: %v", err)
	}
	if err := zombie(); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("the zombie: %v, want ErrClaimLost", err)
	}
}

// The handler of a batch commits by itself, and then its first claim is taken over. The others must not run again.
func TestInbox_ABatchThatItsHandlerCommittedIsEndedForAll(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	mustExec(t, db, `CREATE TABLE effects (name TEXT NOT NULL)`)
	brief := request("first")
	brief.Lease = 50 * time.Millisecond
	runs := []dedupstore.TxRun{
		{Claim: claim(t, s, brief, dedupstore.AcquiredRun).Claim},
		{Claim: claim(t, s, request("second"), dedupstore.AcquiredRun).Claim},
	}
	_, err := s.Inbox().InTx(t.Context(), runs,
		func(ctx context.Context, _ []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			_, err := Tx(ctx).ExecContext(ctx, `INSERT INTO effects VALUES ('both')`)
			_, ended := Tx(ctx).ExecContext(ctx, `COMMIT`)
			other, made := New(db, Config{})
			if err := errors.Join(err, ended, made); err != nil {
				t.Fatal(err)
			}
			for busy := true; busy; {
				a, err := dedupstore.ClaimOne(t.Context(), other, request("first"))
				if err != nil {
					t.Fatal(err)
				}
				busy = a.Status == dedupstore.Busy
			}
			return nil, errors.New("refused")
		})
	if !errors.Is(err, dedupstore.ErrEnded) {
		t.Errorf("the batch returned %v, want ErrEnded", err)
	}
}
