package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

func TestInbox_EffectAndOutcomeAreCommittedTogether(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	r := request("1")
	c, err := inTx(t, s, r, func(ctx context.Context) (dedupstore.Settlement, error) {
		if err := charge(ctx, Tx(ctx), "1"); err != nil {
			return nil, err
		}
		if n := charges(t, db, "1"); n != 0 {
			t.Errorf("the effect is seen before the outcome")
		}
		return succeeded, nil
	})
	if err != nil || charges(t, db, "1") != 1 {
		t.Fatalf("InTx returned %v, %d charges", err, charges(t, db, "1"))
	}
	if a := claim(t, s, request("1"), dedupstore.Done); string(a.Outcome.Result) != "paid" || a.Fence != c.Fence {
		t.Errorf("outcome is %+v", a.Outcome)
	}
	err = dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(context.Context) (dedupstore.Settlement, error) {
		t.Error("a run that has committed ran again")
		return succeeded, nil
	})
	if err != nil {
		t.Errorf("a repeated InTx returned %v, want nil", err)
	}
}

// TestInbox_RowsThatAHandlerLeavesOpenAreClosedByTheCommit is what database/sql does in any transaction.
func TestInbox_RowsThatAHandlerLeavesOpenAreClosedByTheCommit(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	for id, query := range map[string]string{
		"read":  `SELECT 1 UNION SELECT 2`,
		"write": `INSERT INTO ledger (id) VALUES ('write'), ('write') RETURNING entry`,
	} {
		runs := 0
		_, err := inTx(t, s, request(id), func(ctx context.Context) (dedupstore.Settlement, error) {
			runs++
			rows, err := Tx(ctx).QueryContext(ctx, query) //nolint:rowserrcheck,sqlclosecheck // the mistake
			if err != nil || !rows.Next() {
				return nil, errors.Join(err, errors.New("no rows"))
			}
			return succeeded, nil
		})
		if err != nil || runs != 1 {
			t.Errorf("%s: InTx returned %v after %d runs", id, err, runs)
		}
		claim(t, s, request(id), dedupstore.Done)
	}
	if n := charges(t, db, "write"); n != 2 || db.Stats().InUse != 0 {
		t.Errorf("%d charges and %d connections in use, want 2 and none", n, db.Stats().InUse)
	}
}

func TestInbox_RolledBackRunsLeaveTheRecordAsItWas(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	refused := errors.New("card refused")
	cancelled, cancel := context.WithCancel(t.Context())
	for id, tc := range map[string]struct {
		ctx  context.Context
		end  func(tx *sql.Tx) (dedupstore.Settlement, error)
		want error
	}{
		"error":     {t.Context(), func(*sql.Tx) (dedupstore.Settlement, error) { return nil, refused }, refused},
		"rolled":    {t.Context(), func(tx *sql.Tx) (dedupstore.Settlement, error) { return nil, errors.Join(refused, tx.Rollback()) }, refused},
		"invalid":   {t.Context(), func(*sql.Tx) (dedupstore.Settlement, error) { return dedupstore.Finish{}, nil }, &dedupstore.InvalidError{}},
		"cancelled": {cancelled, func(*sql.Tx) (dedupstore.Settlement, error) { cancel(); return succeeded, nil }, context.Canceled},
	} {
		c := claim(t, s, request(id), dedupstore.AcquiredRun).Claim
		err := dedupstore.InTxOne(tc.ctx, s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			if err := charge(ctx, Tx(ctx), id); err != nil {
				t.Error(err)
			}
			return tc.end(Tx(ctx))
		})
		if _, isInvalid := errors.AsType[*dedupstore.InvalidError](err); !errors.Is(err, tc.want) && (id != "invalid" || !isInvalid) {
			t.Errorf("%s: %v, want %v", id, err, tc.want)
		}
		if n := charges(t, db, id); n != 0 {
			t.Errorf("%s: %d charges, want none", id, n)
		}
		claim(t, s, request(id), dedupstore.Busy)
		if err := dedupstore.SettleOne(t.Context(), s, c, succeeded); err != nil {
			t.Errorf("%s: the claim does not hold any more: %v", id, err)
		}
	}
	cancel()
}

func TestInbox_PanicsRollBackAndFreeTheDatabase(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	func() {
		defer func() {
			if v := recover(); v != "boom" {
				t.Errorf("recovered %v, want the handler's panic", v)
			}
		}()
		_ = dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			_ = charge(ctx, Tx(ctx), "1")
			panic("boom")
		})
	}()
	if _, err := inTx(t, s, request("2"), func(context.Context) (dedupstore.Settlement, error) { return succeeded, nil }); err != nil {
		t.Error(err)
	}
	if n := charges(t, db, "1"); n != 0 {
		t.Errorf("%d charges, want none", n)
	}
}

func TestInbox_AHandlerThatEndsTheTransactionIsTold(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	for id, end := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"Commit":   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		"Rollback": func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		"COMMIT": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "COMMIT")
			return err
		},
		"ROLLBACK and BEGIN": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "ROLLBACK; BEGIN")
			return err
		},
	} {
		_, err := inTx(t, s, request(id), func(ctx context.Context) (dedupstore.Settlement, error) {
			if err := charge(ctx, Tx(ctx), id); err != nil {
				return nil, err
			}
			return succeeded, end(ctx, Tx(ctx))
		})
		if !errors.Is(err, dedupstore.ErrEnded) || !strings.Contains(err.Error(), "must not commit") {
			t.Errorf("%s: %v, want ErrEnded", id, err)
		}
		if a := claim(t, s, request(id), dedupstore.Busy); a.Found != dedupstore.Running {
			t.Errorf("%s: the record is %s, want no outcome", id, a.Found)
		}
	}
	if _, err := inTx(t, s, request("next"), func(context.Context) (dedupstore.Settlement, error) { return succeeded, nil }); err != nil {
		t.Errorf("the next run: %v", err)
	}
}

// TestInbox_AHandlerThatCommitsAndFailsIsNotRunAgain has handlers that end the transaction and then return an error.
// What was committed must not be made once more. What was rolled back is an ordinary failure.
func TestInbox_AHandlerThatCommitsAndFailsIsNotRunAgain(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	exec := func(query string) func(context.Context, *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, query)
			return err
		}
	}
	boom := errors.New("boom")
	for id, tc := range map[string]struct {
		end       func(context.Context, *sql.Tx) error
		committed bool
	}{
		"Commit":           {func(_ context.Context, tx *sql.Tx) error { return tx.Commit() }, true},
		"COMMIT":           {exec("COMMIT"), true},
		"COMMIT and BEGIN": {exec("COMMIT; BEGIN"), true},
		"Rollback":         {func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }, false},
		"ROLLBACK":         {exec("ROLLBACK"), false},
		"by SQLite":        {exec("INSERT OR ROLLBACK INTO ledger (entry, id) SELECT 1, '' UNION ALL SELECT 1, ''"), false},
		"nothing":          {func(context.Context, *sql.Tx) error { return nil }, false},
		"cancelled": {func(ctx context.Context, _ *sql.Tx) error {
			ctx.Value(cancelKey{}).(context.CancelFunc)()
			return nil
		}, false},
	} {
		r := request(id)
		c := claim(t, s, r, dedupstore.AcquiredRun).Claim
		ctx, cancel := context.WithCancel(t.Context())
		err := dedupstore.InTxOne(context.WithValue(ctx, cancelKey{}, cancel), s.Inbox(), c,
			func(ctx context.Context) (dedupstore.Settlement, error) {
				return nil, errors.Join(charge(ctx, Tx(ctx), id), tc.end(ctx, Tx(ctx)), boom)
			})
		cancel()
		if !errors.Is(err, boom) || errors.Is(err, dedupstore.ErrEnded) != tc.committed {
			t.Errorf("%s: the run returned %v, want the handler's error, and ErrEnded: %v", id, err, tc.committed)
		}
		if n := charges(t, db, id); (n == 1) != tc.committed {
			t.Errorf("%s: %d charges", id, n)
		}
		if again := claim(t, s, r, dedupstore.AcquiredRun).Claim; again != c {
			t.Errorf("%s: the record changed: %+v, want %+v", id, again, c)
		}
	}

	g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{MaxAttempts: 5, Backoff: oncemill.Backoff{Min: time.Millisecond, Max: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		res, err := g.Run(t.Context(), oncemill.Call{Key: request("guarded").Key}, func(ctx context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, errors.Join(charge(ctx, Tx(ctx), "guarded"), Tx(ctx).Commit(), boom)
		})
		if err != nil || res.Outcome.Kind != dedupstore.Unknown || !strings.Contains(res.Outcome.Reason, boom.Error()) {
			t.Errorf("the run ended as %+v, %v, want an unknown outcome with the handler's error", res.Outcome, err)
		}
	}
	if n := charges(t, db, "guarded"); n != 1 {
		t.Errorf("%d charges, want one", n)
	}
}

// TestInbox_AHandlerThatCommitsAndIsCancelledIsNotRunAgain is about a context that ends between a handler's own commit
// and its return: that rolls nothing back any more.
func TestInbox_AHandlerThatCommitsAndIsCancelledIsNotRunAgain(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	for id, committed := range map[string]bool{"committed": true, "rolled back": false} {
		c := claim(t, s, request(id), dedupstore.AcquiredRun).Claim
		ctx, cancel := context.WithCancel(t.Context())
		err := dedupstore.InTxOne(ctx, s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			err := charge(ctx, Tx(ctx), id)
			if committed {
				err = errors.Join(err, Tx(ctx).Commit())
			}
			cancel()
			return succeeded, err
		})
		if errors.Is(err, dedupstore.ErrEnded) != committed || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the run returned %v, want the end of its context, and ErrEnded: %v", id, err, committed)
		}
		if n := charges(t, db, id); (n == 1) != committed {
			t.Errorf("%s: %d charges", id, n)
		}
	}
}

type cancelKey struct{}

func TestInbox_TwinIsAnsweredWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	other, err := New(openAt(t, fileOf(t, db)), Config{}) // as another process: it knows nothing of the first one's runs
	if err != nil {
		t.Fatal(err)
	}
	for name, twins := range map[string]map[string]*Store{
		"live lease":  {"same store": s, "other process": other},
		"ended lease": {"same store": s},
	} {
		c := claim(t, s, request(name), dedupstore.AcquiredRun).Claim
		if name == "ended lease" {
			expire(t, db)
		}
		running, release := make(chan struct{}), make(chan struct{})
		wait := background(func() error {
			return dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(context.Context) (dedupstore.Settlement, error) {
				close(running)
				<-release
				return succeeded, nil
			})
		})
		<-running
		for who, twin := range twins {
			took := time.Hour
			for range 5 { // the machine may be busy: what counts is what the store needs
				start := time.Now()
				a := claim(t, twin, request(name), dedupstore.Busy)
				took = min(took, time.Since(start))
				if a.Wait <= 0 || a.Found != dedupstore.Running || a.Fence != c.Fence {
					t.Errorf("%s, %s: %+v, want Busy with a wait", name, who, a)
				}
			}
			t.Logf("%s, %s: answered in %v", name, who, took)
			if took > 50*time.Millisecond {
				t.Errorf("%s, %s: answered in %v, want less than 50 ms", name, who, took)
			}
		}
		close(release)
		if err := wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		claim(t, other, request(name), dedupstore.Done)
	}
}

// A handler that outlives its lease: a twin in another process waits for the write lock, and then gets the outcome.
func TestInbox_TwinInAnotherProcessWaitsForALateOutcome(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	other, err := New(openAt(t, fileOf(t, db)), Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	expire(t, db)
	var twin func() error
	err = dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(context.Context) (dedupstore.Settlement, error) {
		twin = background(func() error {
			a, err := dedupstore.ClaimOne(t.Context(), other, request("1"))
			if err == nil && a.Status != dedupstore.Done {
				err = fmt.Errorf("answered %s, want the outcome", a.Status)
			}
			return err
		})
		eventually(t, "the twin waits", func() bool { return len(other.gate.turn) > 0 })
		return succeeded, nil
	})
	if err := errors.Join(err, twin()); err != nil {
		t.Error(err)
	}
}

func TestInbox_HeartbeatNeitherWaitsNorFailsWhileTheTransactionIsOpen(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	const lease = 4 * time.Second
	var lost, runs, extended atomic.Int32
	guard, err := oncemill.NewGuard(slowest{s.Inbox(), &extended, t}, oncemill.Policy{Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	res, err := guard.Run(t.Context(), oncemill.Call{Key: request("1").Key}, func(ctx context.Context) (dedupstore.Outcome, error) {
		runs.Add(1)
		timer := time.NewTimer(3 * lease / 2)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			lost.Add(1)
		}
		return dedupstore.Outcome{}, charge(ctx, Tx(ctx), "1")
	})
	if err != nil || runs.Load() != 1 || lost.Load() != 0 || charges(t, db, "1") != 1 {
		t.Fatalf("%+v, %v: %d runs, %d of them lost their lease, %d charges; want one that commits at the first try",
			res, err, runs.Load(), lost.Load(), charges(t, db, "1"))
	}
	if n := extended.Load(); n < 3 {
		t.Errorf("%d heartbeats in one and a half leases, want three in each or nearly so", n)
	}
}

// slowest counts heartbeats.
type slowest struct {
	dedupstore.Transactor
	n *atomic.Int32
	t *testing.T
}

func (s slowest) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	errs := s.Transactor.Extend(ctx, extensions)
	if err := errors.Join(errs...); err != nil {
		s.t.Errorf("a heartbeat returned %v", err)
	}
	s.n.Add(int32(len(extensions)))
	return errs
}

func TestInbox_HasTheWriteLockFromItsBeginning(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t, "_txlock", "")
	r := request("1")
	c := claim(t, s, r, dedupstore.AcquiredRun).Claim
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(context.Context) (dedupstore.Settlement, error) {
		other, err := s.db.Conn(t.Context())
		if err != nil {
			return nil, err
		}
		defer other.Close()
		if _, err := other.ExecContext(t.Context(), "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE"); !isBusy(err) {
			t.Errorf("another transaction began: %v", err)
		}
		took := time.Hour
		for range 5 { // the machine may be busy: what counts is what the store needs
			start := time.Now()
			if err := dedupstore.ExtendOne(t.Context(), s, beat(c)); err != nil {
				t.Error(err)
			}
			took = min(took, time.Since(start))
		}
		if took > 15*time.Millisecond {
			t.Errorf("a heartbeat took %v, want it not to wait", took)
		}
		return succeeded, nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestInbox_PermanentFailureIsRecordedAlthoughItsWritesAreRolledBack(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	guard, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	for range 2 {
		res, err := guard.Run(t.Context(), oncemill.Call{Key: request("1").Key}, func(ctx context.Context) (dedupstore.Outcome, error) {
			runs++
			if err := charge(ctx, Tx(ctx), "1"); err != nil {
				return dedupstore.Outcome{}, err
			}
			return dedupstore.Outcome{Result: []byte("declined")}, oncemill.Permanent(errors.New("card refused"))
		})
		if err != nil || res.Outcome.Kind != dedupstore.Failed || string(res.Outcome.Result) != "declined" {
			t.Errorf("%+v, %v, want a failure", res, err)
		}
	}
	if n := charges(t, db, "1"); runs != 1 || n != 0 {
		t.Errorf("%d runs and %d charges, want 1 and none", runs, n)
	}
}

func TestInbox_ZombieRollsBack(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	r := request("1")
	r.Lease = time.Millisecond
	c := claim(t, s, r, dedupstore.AcquiredRun).Claim
	eventually(t, "the lease ends and another takes over", func() bool {
		a, err := dedupstore.ClaimOne(t.Context(), s, request("1"))
		return err == nil && a.Status == dedupstore.AcquiredRun
	})
	c.Lease = time.Minute
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(context.Context) (dedupstore.Settlement, error) {
		t.Error("a run whose claim was taken over ran")
		return succeeded, nil
	})
	if !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("%v, want ErrClaimLost", err)
	}
}

func TestInbox_ManyRunsAtOnceEachCommitOnce(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	mustExec(t, db, `CREATE TABLE balance (cents INTEGER NOT NULL)`)
	mustExec(t, db, `INSERT INTO balance VALUES (0)`)
	guard, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	const messages, copies = 25, 3
	var all sync.WaitGroup
	for i := range messages * copies {
		id := fmt.Sprint(i % messages)
		all.Go(func() {
			_, err := guard.Run(t.Context(), oncemill.Call{Key: request(id).Key, MaxWait: time.Minute}, func(ctx context.Context) (dedupstore.Outcome, error) {
				var cents int
				if err := Tx(ctx).QueryRowContext(ctx, `SELECT cents FROM balance`).Scan(&cents); err != nil {
					return dedupstore.Outcome{}, err
				}
				if _, err := Tx(ctx).ExecContext(ctx, `UPDATE balance SET cents = ?`, cents+1); err != nil {
					return dedupstore.Outcome{}, err
				}
				return dedupstore.Outcome{}, charge(ctx, Tx(ctx), id)
			})
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
	all.Wait()
	if n, cents := count(t, db, `SELECT count(*) FROM ledger`), count(t, db, `SELECT cents FROM balance`); n != messages || cents != messages {
		t.Errorf("%d charges and a balance of %d, want %d", n, cents, messages)
	}
}

// busyError is how SQLite says that another has the write lock.
func busyError(t *testing.T, db *sql.DB) error {
	t.Helper()
	first, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if _, err := first.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	_, err = second.ExecContext(t.Context(), "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE")
	if _, undo := first.ExecContext(t.Context(), "ROLLBACK"); undo != nil {
		t.Fatal(undo)
	}
	if e, ok := errors.AsType[*sqlite.Error](err); !ok || e.Code()&0xff != codes.SQLITE_BUSY {
		t.Fatalf("%v, want SQLITE_BUSY", err)
	}
	return err
}

func TestInbox_CommitThatIsRefusedBecauseOfOthersRunsAgainAndEndsInAConflict(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	busy := busyError(t, openAt(t, fileOf(t, db)))
	refuse := 2
	s.commit = func(lt *lockedTx) error {
		if refuse > 0 {
			refuse--
			lt.abort()
			return busy
		}
		return lt.commit()
	}
	calls := 0
	work := func(ctx context.Context) (dedupstore.Settlement, error) {
		calls++
		return succeeded, charge(ctx, Tx(ctx), "1")
	}
	if _, err := inTx(t, s, request("1"), work); err != nil || calls != 3 || charges(t, db, "1") != 1 {
		t.Errorf("%v after %d calls, %d charges; want nil after 3, one charge", err, calls, charges(t, db, "1"))
	}
	refuse, calls = 1000, 0
	_, err := inTx(t, s, request("2"), work)
	if _, conflict := errors.AsType[*dedupstore.ConflictError](err); !conflict || calls != sqlstore.Tries {
		t.Errorf("%v after %d calls, want a ConflictError after %d", err, calls, sqlstore.Tries)
	}
	claim(t, s, request("2"), dedupstore.Busy)
}

func TestInbox_CommitWithoutAnAnswerIsReadFromTheRecord(t *testing.T) {
	t.Parallel()
	lost := errors.New("disk I/O error")
	for name, tc := range map[string]struct {
		commit func(s *Store, lt *lockedTx)
		want   func(error) bool
	}{
		"it is there":  {func(_ *Store, lt *lockedTx) { _ = lt.commit() }, func(err error) bool { return err == nil }},
		"it is not":    {func(_ *Store, lt *lockedTx) { lt.abort() }, func(err error) bool { return errors.Is(err, lost) && !undecided(err) }},
		"nobody knows": {func(s *Store, lt *lockedTx) { _ = lt.commit(); s.statements.load.Close() }, undecided},
	} {
		s, db := newStore(t)
		newLedger(t, db)
		s.commit = func(lt *lockedTx) error { tc.commit(s, lt); return lost }
		r := request("1")
		r.Lease = 300 * time.Millisecond
		_, err := inTx(t, s, r, func(ctx context.Context) (dedupstore.Settlement, error) {
			return succeeded, charge(ctx, Tx(ctx), "1")
		})
		if !tc.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func undecided(err error) bool {
	_, is := errors.AsType[*dedupstore.UndecidedError](err)
	return is
}

func TestInbox_RefusesToWaitForItself(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	other, err := New(db, Config{Table: "of_another_guard"})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for table, nested := range map[string]*Store{"its own": s, "another in the database": other} {
		_, err := inTx(t, s, request(table), func(ctx context.Context) (dedupstore.Settlement, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second) // a claim would wait for as long
			defer cancel()
			_, err := dedupstore.ClaimOne(ctx, nested, request("nested"))
			return nil, err
		})
		if !errors.Is(err, ErrNested) {
			t.Errorf("%s: %v, want ErrNested", table, err)
		}
	}
}

func TestTx_PanicsOutsideARun(t *testing.T) {
	t.Parallel()
	defer func() {
		if v := fmt.Sprint(recover()); !strings.Contains(v, "outside a run of an inbox") {
			t.Errorf("recovered %q", v)
		}
	}()
	Tx(t.Context())
}

func fileOf(t *testing.T, db *sql.DB) (file string) {
	t.Helper()
	if err := db.QueryRow(`SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&file); err != nil {
		t.Fatal(err)
	}
	return file
}

// A goroutine that a handler starts, or a value that it returns, has its context for longer than the run.
func TestInbox_ContextOfARunThatIsOverIsRefusedNothing(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	var kept context.Context
	if _, err := inTx(t, s, request("1"), func(ctx context.Context) (dedupstore.Settlement, error) {
		kept = context.WithoutCancel(ctx) //nolint:fatcontext // as what a handler leaves running does
		return succeeded, nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := dedupstore.ClaimOne(kept, s, request("2")); err != nil {
		t.Error(err)
	}
}
