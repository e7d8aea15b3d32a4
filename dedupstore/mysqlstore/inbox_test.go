package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

// TestInbox_EndedTransactionsAreNoticed: what ends the transaction commits it, or writes what comes after it outside.
func TestInbox_EndedTransactionsAreNoticed(t *testing.T) {
	t.Parallel()
	boom := errors.New("card refused")
	for name, end := range map[string]func(ctx context.Context) error{
		"Commit":               func(ctx context.Context) error { return Tx(ctx).Commit() },
		"a statement":          func(ctx context.Context) error { return exec(ctx, "COMMIT") },
		"data definition":      func(ctx context.Context) error { return exec(ctx, "CREATE TABLE made (n INT)") },
		"another transaction":  func(ctx context.Context) error { return exec(ctx, "START TRANSACTION") },
		"a swallowed deadlock": func(ctx context.Context) error { return exec(ctx, "ROLLBACK") },
	} {
		timeout := fmt.Errorf("%w: %w", boom, &mysql.MySQLError{Number: errLockTimeout}) // which rolls nothing back
		for how, result := range map[string]error{"nil": nil, "an error": boom, "a lock timeout": timeout} {
			t.Run(name+" and "+how, func(t *testing.T) {
				t.Parallel()
				db := newDB(t)
				s := newStore(t, db)
				err := s.Inbox().InTx(t.Context(), runOf(t, s, "1"),
					func(ctx context.Context) (dedupstore.Settlement, error) {
						return success, errors.Join(effect(ctx, "1"), end(ctx), result)
					})
				if !errors.Is(err, dedupstore.ErrEnded) || result != nil && !errors.Is(err, boom) {
					t.Errorf("the transaction returned %v, want ErrEnded", err)
				}
				if n := db.Stats().InUse; n != 0 {
					t.Errorf("%d connections are in use", n)
				}
			})
		}
	}
}

// TestInbox_RunInAHandlerNeedsNoPlaceOfItsOwn: handlers have all places, and each runs another store in itself.
func TestInbox_RunInAHandlerNeedsNoPlaceOfItsOwn(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.SetMaxOpenConns(4)
	s := newStore(t, db)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var begun, all sync.WaitGroup
	begun.Add(3) // as many as there are places
	for i := range 3 {
		outer, inner := runOf(t, s, fmt.Sprint("outer-", i)), runOf(t, s, fmt.Sprint("inner-", i))
		all.Go(func() {
			err := s.Inbox().InTx(ctx, outer, func(ctx context.Context) (dedupstore.Settlement, error) {
				begun.Done()
				begun.Wait()
				return success, s.Inbox().InTx(ctx, inner, func(context.Context) (dedupstore.Settlement, error) {
					return success, nil
				})
			})
			if err != nil {
				t.Errorf("run %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// TestInbox_ManyRunsInAHandlerLeaveHeartbeatsAConnection: else all leases would end, the handler's own among them.
func TestInbox_ManyRunsInAHandlerLeaveHeartbeatsAConnection(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.SetMaxOpenConns(8)
	policy := oncemill.Policy{Lease: 3 * time.Second, MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler)}
	guard, err := oncemill.NewGuard(newStore(t, db).Inbox(), policy)
	if err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, id string, work func(ctx context.Context)) {
		call := oncemill.Call{Key: request(id).Key, MaxWait: time.Minute}
		res, err := guard.Run(ctx, call, func(ctx context.Context) (dedupstore.Outcome, error) {
			work(ctx)
			return dedupstore.Outcome{}, context.Cause(ctx)
		})
		if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("run %s ended with %+v, %v", id, res.Outcome, err)
		}
	}
	run(t.Context(), "all", func(ctx context.Context) {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				run(ctx, fmt.Sprint(i), func(ctx context.Context) {
					select {
					case <-ctx.Done():
					case <-time.After(3500 * time.Millisecond):
					}
				})
			})
		}
		all.Wait()
	})
}

func exec(ctx context.Context, statement string) error {
	_, err := Tx(ctx).ExecContext(ctx, statement)
	return err
}

// TestInbox_RealDeadlocksAreRepeated: two handlers write two rows in opposite orders.
func TestInbox_RealDeadlocksAreRepeated(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	mustExec(t, db, "CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL)")
	mustExec(t, db, "INSERT INTO accounts VALUES (1, 0), (2, 0)")
	var calls sync.WaitGroup
	both := make(chan struct{}, 2)
	meet := sync.OnceFunc(func() { <-both; <-both })
	errs := make([]error, 2)
	runs := make([]int, 2)
	for i := range 2 {
		c := runOf(t, s, fmt.Sprint(i))
		calls.Go(func() {
			errs[i] = s.Inbox().InTx(t.Context(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
				runs[i]++
				add := func(id int) error {
					_, err := Tx(ctx).ExecContext(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = ?", id)
					return err
				}
				if err := add(1 + i); err != nil {
					return nil, err
				}
				if runs[i] == 1 {
					both <- struct{}{}
					meet()
				}
				return success, add(2 - i)
			})
		})
	}
	calls.Wait()
	if err := errors.Join(errs...); err != nil || runs[0]+runs[1] != 3 {
		t.Errorf("%v after %v calls, want 3 in all", err, runs)
	}
	if sum := count(t, db, "SELECT sum(balance) FROM accounts"); sum != 4 {
		t.Errorf("the balances are %d in all, want 4", sum)
	}
}

// TestInbox_HandlersThatGoOnAfterADeadlock: it has ended the transaction, and what comes after it is rolled back, too.
func TestInbox_HandlersThatGoOnAfterADeadlock(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.SetMaxOpenConns(2)
	s := newStore(t, db)
	calls := 0
	err := s.Inbox().InTx(t.Context(), runOf(t, s, "1"), func(ctx context.Context) (dedupstore.Settlement, error) {
		var deadlock error
		if calls++; calls == 1 {
			_ = exec(ctx, "ROLLBACK")
			deadlock = exec(ctx, "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213")
		}
		return success, errors.Join(deadlock, effect(ctx, "1"))
	})
	if err != nil || calls != 2 {
		t.Errorf("%v after %d calls, want nil after 2", err, calls)
	}
	wantEffects(t, db, "1", 1)
	for range 2 * db.Stats().Idle {
		if n := count(t, db, "SELECT @@autocommit"); n != 1 {
			t.Error("a connection came back without autocommit")
		}
	}
}

// TestInbox_GivesUpOnAServerThatStandsStill: nobody waits for a transaction to begin when the run's context has ended.
func TestInbox_GivesUpOnAServerThatStandsStill(t *testing.T) {
	t.Parallel()
	d := mysqltest.Shared(t).NewDatabase(t)
	direct := d.Open(t)
	s := newStore(t, direct)
	c := runOf(t, s, "1")
	proxy := mysqltest.StartProxy(t, mysqltest.Shared(t).Addr())
	s = unmigrated(t, d.Open(t, func(c *mysql.Config) { c.Addr = proxy.Addr }), Config{})
	ctx, cancel := context.WithCancel(t.Context())
	commands := 0
	proxy.Inject(func() mysqltest.Fault { // the first ones look at the table and at the record
		if commands++; commands < 3 {
			return mysqltest.Fault{}
		}
		cancel()
		return mysqltest.Fault{Freeze: 10 * time.Second}
	})
	began := time.Now()
	err := s.Inbox().InTx(ctx, c, func(context.Context) (dedupstore.Settlement, error) {
		t.Error("work is called")
		return success, nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the transaction returned %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestInbox_LockTimeoutsAreConflicts: a statement that waits in vain says nothing of the message.
func TestInbox_LockTimeoutsAreConflicts(t *testing.T) {
	t.Parallel()
	db := newDB(t, func(c *mysql.Config) { c.Params = map[string]string{"innodb_lock_wait_timeout": "0"} })
	s := newStore(t, db)
	mustExec(t, db, "CREATE TABLE accounts (id INT PRIMARY KEY)")
	mustExec(t, db, "INSERT INTO accounts VALUES (1)")
	other, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback()
	lock := "SELECT id FROM accounts WHERE id = 1 FOR UPDATE"
	if _, err := other.ExecContext(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	calls := 0
	err = s.Inbox().InTx(t.Context(), runOf(t, s, "1"), func(ctx context.Context) (dedupstore.Settlement, error) {
		if calls++; calls == 3 {
			_ = other.Rollback()
		}
		return success, exec(ctx, lock)
	})
	if err != nil || calls != 3 {
		t.Errorf("%v after %d calls, want nil after 3", err, calls)
	}
}

// TestInbox_LockTimeoutThatEndsTheTransactionIsAConflict: innodb_rollback_on_timeout is no end by the handler.
func TestInbox_LockTimeoutThatEndsTheTransactionIsAConflict(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	c := runOf(t, s, "1")
	s.timeoutEnds.Store(true)
	calls := 0
	err := s.Inbox().InTx(t.Context(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		if calls++; calls == 3 {
			return success, effect(ctx, "1")
		}
		return nil, errors.Join(effect(ctx, "1"), exec(ctx, "ROLLBACK"), &mysql.MySQLError{Number: errLockTimeout})
	})
	if err != nil || calls != 3 {
		t.Errorf("%v after %d calls, want nil after 3", err, calls)
	}
	wantEffects(t, db, "1", 1)
}

// TestInbox_KilledConnections: the server rolls back what a connection leaves, and the claim stays.
func TestInbox_KilledConnections(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	r := request("1")
	c := claim(t, s, r, dedupstore.AcquiredRun).Claim
	err := s.Inbox().InTx(t.Context(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		if err := effect(ctx, "1"); err != nil {
			return nil, err
		}
		var id int
		if err := Tx(ctx).QueryRowContext(ctx, "SELECT connection_id()").Scan(&id); err != nil {
			return nil, err
		}
		mustExec(t, db, fmt.Sprintf("KILL %d", id))
		return success, nil
	})
	if err == nil || errors.Is(err, dedupstore.ErrEnded) || errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("the transaction returned %v, want the error of its connection", err)
	}
	wantEffects(t, db, "1", 0)
	claim(t, s, r, dedupstore.AcquiredRun)
	if err := s.Inbox().InTx(t.Context(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		return success, effect(ctx, "1")
	}); err != nil {
		t.Error(err)
	}
	wantEffects(t, db, "1", 1)
}

// TestInbox_HandlersLeaveConnectionsToHeartbeats: more handlers than connections neither starve claims nor deadlock.
func TestInbox_HandlersLeaveConnectionsToHeartbeats(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.SetMaxOpenConns(4)
	s := newStore(t, db)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var runs sync.WaitGroup
	for i := range 12 {
		c := runOf(t, s, fmt.Sprint(i))
		runs.Go(func() {
			err := s.Inbox().InTx(ctx, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				err := dedupstore.ExtendOne(ctx, s, dedupstore.Extension{Claim: c, Lease: long, Started: true})
				return success, errors.Join(err, effect(ctx, fmt.Sprint(i)))
			})
			if err != nil {
				t.Errorf("run %d: %v", i, err)
			}
		})
	}
	runs.Wait()
}

func TestTx_PanicsOutsideARun(t *testing.T) {
	t.Parallel()
	defer func() {
		if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), "mysqlstore: Tx outside") {
			t.Errorf("it panicked with %v", v)
		}
	}()
	Tx(t.Context())
}

// TestStore_ResultsWithoutRoom: what the server would not take is refused before it is sent, and a smaller one is not.
func TestStore_ResultsWithoutRoom(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	large := success
	large.Outcome.Result = make([]byte, count(t, db, "SELECT @@max_allowed_packet"))
	first, second, third := runOf(t, s, "1"), runOf(t, s, "2"), runOf(t, s, "3")
	errs := s.Settle(t.Context(), []dedupstore.Settling{{Claim: first, Settlement: large},
		{Claim: second, Settlement: success}})
	if !errors.Is(errs[0], dedupstore.ErrFull) || errs[1] != nil {
		t.Errorf("the settlements returned %v", errs)
	}
	err := s.Inbox().InTx(t.Context(), third,
		func(context.Context) (dedupstore.Settlement, error) { return large, nil })
	if !errors.Is(err, dedupstore.ErrFull) {
		t.Errorf("the transaction returned %v", err)
	}
	for _, c := range []dedupstore.Claim{first, third} {
		if err := dedupstore.SettleOne(t.Context(), s, c, success); err != nil {
			t.Error(err)
		}
	}
}

// TestInbox_AStatementThatIsTooLargeIsAFailure: it is the handler's, and no attempt helps. The store has room.
func TestInbox_AStatementThatIsTooLargeIsAFailure(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	text := make([]byte, count(t, db, "SELECT @@max_allowed_packet"))
	err := s.Inbox().InTx(t.Context(), runOf(t, s, "1"), func(ctx context.Context) (dedupstore.Settlement, error) {
		_, err := Tx(ctx).ExecContext(ctx, "DO ?", text)
		return success, err
	})
	if err == nil || errors.Is(err, dedupstore.ErrFull) {
		t.Errorf("the transaction returned %v", err)
	}
}

// TestStore_SettlesWhatFitsOnlyInSeveralStatements: a batch of large records.
func TestStore_SettlesWhatFitsOnlyInSeveralStatements(t *testing.T) {
	t.Parallel()
	s := newStore(t, newDB(t))
	var requests []dedupstore.Request
	for i := range 40 {
		requests = append(requests, request(fmt.Sprint(i)))
	}
	large := success
	large.Outcome.Result = make([]byte, 64<<10)
	var settlings []dedupstore.Settling
	for _, result := range s.Claim(t.Context(), requests) {
		settlings = append(settlings, dedupstore.Settling{Claim: result.Answer.Claim, Settlement: large})
	}
	if err := errors.Join(s.Settle(t.Context(), settlings)...); err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		a := claim(t, s, request(r.Key.ID), dedupstore.Done)
		if len(a.Outcome.Result) != 64<<10 {
			t.Fatalf("a result of %d bytes", len(a.Outcome.Result))
		}
	}
}

func TestClean_RemovesWhatHasExpired(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	var requests []dedupstore.Request
	for i := range 500 {
		requests = append(requests, request(fmt.Sprint(i)))
	}
	s.Claim(t.Context(), requests)
	mustExec(t, db, "UPDATE oncemill_dedup SET expires_at = 1 WHERE id < x'C0'")
	expired := count(t, db, "SELECT count(*) FROM oncemill_dedup WHERE expires_at = 1")
	if n, err := s.Clean(t.Context(), 250); n != 250 || err != nil {
		t.Errorf("cleaned %d, %v; want 250", n, err)
	}
	s.rest = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.RunCleaning(ctx) }()
	for count(t, db, "SELECT count(*) FROM oncemill_dedup") > 500-expired {
		<-time.After(5 * time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if left := count(t, db, "SELECT count(*) FROM oncemill_dedup"); left != 500-expired {
		t.Errorf("%d records are left, want %d", left, 500-expired)
	}
}
