package mysqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
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
		"Commit":              func(ctx context.Context) error { return Tx(ctx).Commit() },
		"a statement":         func(ctx context.Context) error { return exec(ctx, "COMMIT") },
		"data definition":     func(ctx context.Context) error { return exec(ctx, "CREATE TABLE made (n INT)") },
		"another transaction": func(ctx context.Context) error { return exec(ctx, "START TRANSACTION") },
		"a rollback":          func(ctx context.Context) error { return exec(ctx, "ROLLBACK") },
		"autocommit":          func(ctx context.Context) error { return exec(ctx, "SET autocommit = 1") },
	} {
		refused := fmt.Errorf("%w: %w", boom, &mysql.MySQLError{Number: errDeadlock}) // of something else
		for how, result := range map[string]error{"nil": nil, "an error": boom, "a deadlock's error": refused} {
			t.Run(name+" and "+how, func(t *testing.T) {
				t.Parallel()
				db := newDB(t)
				s := newStore(t, db)
				for way, run := range oneRun {
					err := run(t, s, request(way), func(ctx context.Context) (dedupstore.Settlement, error) {
						return success, errors.Join(effect(ctx, "1"), end(ctx), result)
					})
					mustExec(t, db, "DROP TABLE IF EXISTS made")
					if !errors.Is(err, dedupstore.ErrEnded) || result != nil && !errors.Is(err, boom) {
						t.Errorf("the transaction of a %s run returned %v, want ErrEnded", way, err)
					}
				}
				if n := db.Stats().InUse; n != 0 {
					t.Errorf("%d connections are in use", n)
				}
			})
		}
	}
}

// TestInbox_RefusesADriverThatHidesTheEndOfATransaction: with rejectReadOnly a write after a COMMIT says that the
// connection was lost, which says nothing of what was committed.
func TestInbox_RefusesADriverThatHidesTheEndOfATransaction(t *testing.T) {
	t.Parallel()
	s := newStore(t, newDB(t, func(c *mysql.Config) { c.RejectReadOnly = true }))
	claim(t, s, request("leased"), dedupstore.AcquiredRun)
	_, err := s.Inbox().(dedupstore.Checker).Check(t.Context())
	wantSetup(t, err, "rejectReadOnly")
	for way, run := range oneRun {
		err := run(t, s, request(way), func(context.Context) (dedupstore.Settlement, error) {
			t.Errorf("a %s run began", way)
			return success, nil
		})
		wantSetup(t, err, "rejectReadOnly")
	}
}

// TestInbox_RunInAHandlerNeedsNoPlaceOfItsOwn: handlers have all places, and each runs another store in itself.
func TestInbox_RunInAHandlerNeedsNoPlaceOfItsOwn(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.SetMaxOpenConns(5)
	s := newStore(t, db)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var begun, all sync.WaitGroup
	begun.Add(3) // as many as there are places
	for i := range 3 {
		outer, inner := runOf(t, s, fmt.Sprint("outer-", i)), runOf(t, s, fmt.Sprint("inner-", i))
		all.Go(func() {
			err := dedupstore.InTxOne(ctx, s.Inbox(), outer, func(ctx context.Context) (dedupstore.Settlement, error) {
				begun.Done()
				begun.Wait()
				return success, dedupstore.InTxOne(ctx, s.Inbox(), inner,
					func(context.Context) (dedupstore.Settlement, error) {
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

// TestInbox_RunsInHandlersLeaveHeartbeatsAConnection: as many handlers run as may, and each has a run in itself that
// does not end. Renewals of their leases go on.
func TestInbox_RunsInHandlersLeaveHeartbeatsAConnection(t *testing.T) {
	t.Parallel()
	for _, pool := range []int{3, 4, 6} {
		t.Run(fmt.Sprint(pool), func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			db.SetMaxOpenConns(pool)
			s := newStore(t, db)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			end := make(chan struct{})
			inside := make(chan struct{}, pool)
			var outers []dedupstore.Claim
			var all, begun sync.WaitGroup
			begun.Add(cap(s.handlers()))
			for i := range cap(s.handlers()) {
				outer, inner := runOf(t, s, fmt.Sprint("outer-", i)), runOf(t, s, fmt.Sprint("inner-", i))
				outers = append(outers, outer)
				all.Go(func() {
					err := dedupstore.InTxOne(ctx, s.Inbox(), outer,
						func(ctx context.Context) (dedupstore.Settlement, error) {
							begun.Done()
							begun.Wait()
							return success, dedupstore.InTxOne(ctx, s.Inbox(), inner,
								func(context.Context) (dedupstore.Settlement, error) {
									inside <- struct{}{}
									<-end
									return success, nil
								})
						})
					if err != nil {
						t.Errorf("run %d: %v", i, err)
					}
				})
			}
			<-inside
			bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			for i, c := range outers {
				err := dedupstore.ExtendOne(bounded, s, dedupstore.Extension{Claim: c, Lease: long, Started: true})
				if err != nil {
					t.Errorf("the renewal of run %d: %v", i, err)
				}
			}
			close(end)
			all.Wait()
		})
	}
}

// TestInbox_ARunInARunInARunEnds: one that has the extra place needs another.
func TestInbox_ARunInARunInARunEnds(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.SetMaxOpenConns(8)
	s := newStore(t, db)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var run func(ctx context.Context, i, depth int) error
	run = func(ctx context.Context, i, depth int) error {
		c := runOf(t, s, fmt.Sprint(i, "-", depth))
		return dedupstore.InTxOne(ctx, s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			if depth == 0 {
				return success, nil
			}
			return success, run(ctx, i, depth-1)
		})
	}
	var all sync.WaitGroup
	for i := range 2 * cap(s.handlers()) {
		all.Go(func() {
			if err := run(ctx, i, 2); err != nil {
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
	policy := oncemill.Policy{Lease: 6 * time.Second, MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler)}
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
					case <-time.After(7 * time.Second):
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
			errs[i] = dedupstore.InTxOne(t.Context(), s.Inbox(), c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
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

// deadlock makes the server roll the transaction of a run back, because another one, which has written more, has locked
// what it wants, and wants what it has locked.
func deadlock(ctx context.Context, t *testing.T, db *sql.DB) error {
	t.Helper()
	background := context.Background()
	name := "pit_" + strings.ToLower(rand.Text())
	mustExec(t, db, "CREATE TABLE "+name+" (id INT PRIMARY KEY, n INT NOT NULL)")
	defer mustExec(t, db, "DROP TABLE "+name)
	mustExec(t, db, "INSERT INTO "+name+" VALUES (1, 0), (2, 0)")
	other, err := db.BeginTx(background, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback()
	more := strings.Repeat(", (LAST_INSERT_ID(LAST_INSERT_ID() + 1) + 10, 0)", 50)
	heavy := "INSERT INTO " + name + " VALUES (10, 0)" + more
	for _, statement := range []string{"DO LAST_INSERT_ID(1)", heavy, "UPDATE " + name + " SET n = 1 WHERE id = 2"} {
		if _, err := other.ExecContext(background, statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := exec(ctx, "UPDATE "+name+" SET n = 1 WHERE id = 1"); err != nil {
		return err
	}
	var waits sync.WaitGroup
	waits.Go(func() {
		if _, err := other.ExecContext(background, "UPDATE "+name+" SET n = 1 WHERE id = 1"); err != nil {
			t.Error(err)
		}
	})
	defer waits.Wait()
	return exec(ctx, "UPDATE "+name+" SET n = 1 WHERE id = 2")
}

// TestInbox_DeadlocksAreRepeatedWhateverTheHandlerSays, and what it writes after them is rolled back, too.
func TestInbox_DeadlocksAreRepeatedWhateverTheHandlerSays(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]func(deadlock error) error{
		"its error":        func(deadlock error) error { return deadlock },
		"nothing":          func(error) error { return nil },
		"a permanent one":  func(error) error { return oncemill.Permanent(errors.New("no luck")) },
		"a panic with it":  func(deadlock error) error { return &oncemill.PanicError{Value: deadlock} },
		"a panic about it": func(deadlock error) error { return &oncemill.PanicError{Value: "no luck"} },
	} {
		for _, goesOn := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", goes on: ", goesOn), func(t *testing.T) {
				t.Parallel()
				db := newDB(t, func(c *mysql.Config) { c.Params = map[string]string{"wait_timeout": "777"} })
				s := newStore(t, db)
				for way, run := range oneRun {
					calls := 0
					err := run(t, s, request(way), func(ctx context.Context) (dedupstore.Settlement, error) {
						if calls++; calls > 1 {
							return success, effect(ctx, way)
						}
						err := effect(ctx, way)
						if err == nil {
							err = deadlock(ctx, t, db)
						}
						if number(err) != errDeadlock {
							t.Fatalf("the handler saw %v, want a deadlock", err)
						}
						if goesOn {
							if err := effect(ctx, way); err != nil {
								t.Error(err)
							}
						}
						return success, result(err)
					})
					if err != nil || calls != 2 {
						t.Errorf("%v after %d calls, want nil after 2", err, calls)
					}
					wantEffects(t, db, way, 1)
				}
				wantSessions(t, db)
			})
		}
	}
}

// wantSessions wants the idle connections of a pool to be as they were.
func wantSessions(t *testing.T, db *sql.DB) {
	t.Helper()
	for range db.Stats().Idle {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var commits, readOnly bool
		var wait int
		row := conn.QueryRowContext(t.Context(), "SELECT @@autocommit, @@tx_read_only, @@wait_timeout")
		if err := row.Scan(&commits, &readOnly, &wait); err != nil {
			t.Fatal(err)
		}
		if !commits || readOnly || wait != 777 {
			t.Errorf("a session came back with autocommit %v, read only %v, wait_timeout %d", commits, readOnly, wait)
		}
	}
}

// TestInbox_SessionsComeBackAsTheyWere, or not at all.
func TestInbox_SessionsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func(ctx context.Context) error{
		"success": func(ctx context.Context) error { return effect(ctx, "1") },
		"failure": func(context.Context) error { return errors.New("boom") },
		"commit":  func(ctx context.Context) error { return exec(ctx, "COMMIT") },
		"the handler's own settings": func(ctx context.Context) error {
			return errors.Join(exec(ctx, "SET SESSION wait_timeout = 5"), errors.New("boom"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t, func(c *mysql.Config) { c.Params = map[string]string{"wait_timeout": "777"} })
			s := newStore(t, db)
			for lease, want := range map[time.Duration]int{
				time.Second: 60, 90 * time.Second: 90, 400 * 24 * time.Hour: 365 * 24 * 3600,
			} {
				r := request(name + lease.String())
				r.Lease = lease
				c := claim(t, s, r, dedupstore.AcquiredRun).Claim
				_ = dedupstore.InTxOne(t.Context(), s.Inbox(), c,
					func(ctx context.Context) (dedupstore.Settlement, error) {
						var wait int
						if err := Tx(ctx).QueryRowContext(ctx, "SELECT @@wait_timeout").Scan(&wait); err != nil || wait != want {
							t.Errorf("wait_timeout is %d, %v; want %d", wait, err, want)
						}
						if err := effect(ctx, "level"); err != nil || !runsAt(ctx, Tx(ctx), "READ COMMITTED") {
							t.Errorf("the transaction is not READ COMMITTED: %v", err)
						}
						return success, work(ctx)
					})
			}
			wantSessions(t, db)
		})
	}
}

// TestInbox_WritesAfterACommitAreRefused: they would have no outcome either.
func TestInbox_WritesAfterACommitAreRefused(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"COMMIT", "CREATE TABLE made (n INT)", "START TRANSACTION", "ROLLBACK"} {
		for way, run := range oneRun {
			db := newDB(t)
			s := newStore(t, db)
			_ = run(t, s, request("1"), func(ctx context.Context) (dedupstore.Settlement, error) {
				_ = exec(ctx, end)
				if err := effect(ctx, "1"); number(err) != errReadOnlyTx {
					t.Errorf("a write of a %s run after %s returned %v", way, end, err)
				}
				_ = exec(ctx, "COMMIT")
				return success, nil
			})
			wantEffects(t, db, "1", 0)
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
	if _, err := s.Inbox().(dedupstore.Checker).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	commands := 0
	proxy.Inject(func() mysqltest.Fault { // the first one looks at the record
		if commands++; commands < 2 {
			return mysqltest.Fault{}
		}
		cancel()
		return mysqltest.Fault{Freeze: 10 * time.Second}
	})
	began := time.Now()
	err := dedupstore.InTxOne(ctx, s.Inbox(), c, func(context.Context) (dedupstore.Settlement, error) {
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

// TestInbox_AFirstRunGivesUpOnAServerThatStandsStill: it has no heartbeat that would end its context.
func TestInbox_AFirstRunGivesUpOnAServerThatStandsStill(t *testing.T) {
	t.Parallel()
	d := mysqltest.Shared(t).NewDatabase(t)
	newStore(t, d.Open(t))
	proxy := mysqltest.StartProxy(t, mysqltest.Shared(t).Addr())
	s := unmigrated(t, d.Open(t, func(c *mysql.Config) { c.Addr = proxy.Addr }), Config{})
	if _, err := s.Inbox().(dedupstore.Checker).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Inject(func() mysqltest.Fault { return mysqltest.Fault{Freeze: 2 * time.Minute} })
	r := request("1")
	r.Lease = 2 * time.Second
	began := time.Now()
	_, err := firsts(t, s, func(context.Context) (dedupstore.Settlement, error) {
		t.Error("work is called")
		return success, nil
	}, r)
	if took := time.Since(began); err == nil || took > 30*time.Second {
		t.Errorf("it returned %v after %v, want an error within its lease", err, took)
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
	err = dedupstore.InTxOne(t.Context(), s.Inbox(), runOf(t, s, "1"),
		func(ctx context.Context) (dedupstore.Settlement, error) {
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
	db := mysqltest.Start(t, "--innodb-rollback-on-timeout", "--innodb-lock-wait-timeout=0").NewDatabase(t).Open(t)
	mustExec(t, db, effectsTable)
	s := newStore(t, db)
	mustExec(t, db, "CREATE TABLE accounts (id INT PRIMARY KEY)")
	mustExec(t, db, "INSERT INTO accounts VALUES (1)")
	lock := "SELECT id FROM accounts WHERE id = 1 FOR UPDATE"
	other, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback()
	if _, err := other.ExecContext(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	calls := 0
	err = dedupstore.InTxOne(t.Context(), s.Inbox(), runOf(t, s, "1"),
		func(ctx context.Context) (dedupstore.Settlement, error) {
			if calls++; calls == 3 {
				return success, effect(ctx, "1")
			}
			_ = errors.Join(effect(ctx, "1"), exec(ctx, lock))
			return success, nil
		})
	if err != nil || calls != 3 {
		t.Errorf("%v after %d calls, want nil after 3", err, calls)
	}
	wantEffects(t, db, "1", 1)
}

// TestInbox_SettlesByItsID: MariaDB would read the whole table for a comparison of rows with the ID in it.
func TestInbox_SettlesByItsID(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	var requests []dedupstore.Request
	for i := range 500 {
		requests = append(requests, request(fmt.Sprint(i)))
	}
	s.Claim(t.Context(), requests)
	c := runOf(t, s, "1000")
	reads := func(conn *sql.Tx) (n int) {
		var name string
		if err := conn.QueryRow("SHOW SESSION STATUS LIKE 'Handler_read_rnd_next'").Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	var before, after int
	s.commit = func(ctx context.Context, tx *sql.Tx) error {
		after = reads(tx)
		return commit(ctx, tx)
	}
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		before = reads(Tx(ctx))
		return success, nil
	})
	if err != nil || after-before > 400 { // what SHOW reads itself
		t.Errorf("%v, and %d rows read one after the other", err, after-before)
	}
}

// TestInbox_KilledConnections: the server rolls back what a connection leaves, and the claim stays.
func TestInbox_KilledConnections(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	r := request("1")
	c := claim(t, s, r, dedupstore.AcquiredRun).Claim
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
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
	if err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
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
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var runs sync.WaitGroup
	for i := range 12 {
		c := runOf(t, s, fmt.Sprint(i))
		runs.Go(func() {
			err := dedupstore.InTxOne(ctx, s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
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
	if !errors.Is(errs[0], dedupstore.ErrTooLarge) || errs[1] != nil {
		t.Errorf("the settlements returned %v", errs)
	}
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), third,
		func(context.Context) (dedupstore.Settlement, error) { return large, nil })
	if !errors.Is(err, dedupstore.ErrTooLarge) {
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
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), runOf(t, s, "1"),
		func(ctx context.Context) (dedupstore.Settlement, error) {
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
