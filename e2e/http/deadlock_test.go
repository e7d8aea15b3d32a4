package http_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/idempotencykey"
	"github.com/oncemill/oncemill/producer/webhook"
)

// A bank is an inbox beside accounts, and moves that say which transfers were made.
type bank struct {
	inbox dedupstore.Transactor
	exec  func(ctx context.Context, statement string) error // in the transaction of a run
	query func(query string) (int, error)
}

// rows counts what a condition finds in a table.
func (b *bank) rows(t *testing.T, of string) int {
	t.Helper()
	n, err := b.query("SELECT count(*) FROM " + of)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func schemaOf(accounts int) []string {
	all := make([]string, accounts)
	for i := range all {
		all[i] = fmt.Sprintf("(%d, 1000)", i)
	}
	return []string{
		"CREATE TABLE accounts (id INT PRIMARY KEY, cents INT NOT NULL)",
		"INSERT INTO accounts VALUES " + strings.Join(all, ","),
		"CREATE TABLE moves (id VARCHAR(100) NOT NULL)",
	}
}

// banks are the databases whose deadlocks are met.
var banks = map[string]func(t *testing.T, accounts int) *bank{
	"MariaDB": func(t *testing.T, accounts int) *bank {
		db := mysqltest.Shared(t).NewDatabase(t).Open(t)
		db.SetMaxOpenConns(20)
		s, err := mysqlstore.New(db, mysqlstore.Config{Logger: keytest.Quiet()})
		if err != nil {
			t.Fatal(err)
		}
		return newBankOf(t, s.Migrate, accounts, &bank{
			s.Inbox(),
			func(ctx context.Context, statement string) error {
				_, err := mysqlstore.Tx(ctx).ExecContext(ctx, statement)
				return err
			},
			func(query string) (n int, err error) { return n, db.QueryRow(query).Scan(&n) },
		}, func(ctx context.Context, statement string) error { return execSQL(ctx, db, statement) })
	},
	"PostgreSQL": func(t *testing.T, accounts int) *bank {
		pool, s := newPostgres(t)
		return newBankOf(t, s.Migrate, accounts, &bank{
			s.Inbox(),
			func(ctx context.Context, statement string) error {
				_, err := pgstore.Tx(ctx).Exec(ctx, statement)
				return err
			},
			func(query string) (n int, err error) { return n, pool.QueryRow(context.Background(), query).Scan(&n) },
		}, func(ctx context.Context, statement string) error {
			_, err := pool.Exec(ctx, statement)
			return err
		})
	},
	"PostgreSQL by database/sql": func(t *testing.T, accounts int) *bank {
		pool, s := newPostgres(t)
		return newBankOf(t, s.Migrate, accounts, &bank{
			s.InboxSQL(),
			func(ctx context.Context, statement string) error {
				_, err := pgstore.SQLTx(ctx).ExecContext(ctx, statement)
				return err
			},
			func(query string) (n int, err error) { return n, pool.QueryRow(context.Background(), query).Scan(&n) },
		}, func(ctx context.Context, statement string) error {
			_, err := pool.Exec(ctx, statement)
			return err
		})
	},
}

func newPostgres(t *testing.T) (*pgxpool.Pool, *pgstore.Store) {
	t.Helper()
	config, err := pgxpool.ParseConfig(postgrestest.Shared(t).NewDatabase(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 20
	config.ConnConfig.RuntimeParams["deadlock_timeout"] = "20ms" // how soon the server looks for one
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := pgstore.New(pool, pgstore.Config{Logger: keytest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	return pool, s
}

func execSQL(ctx context.Context, db *sql.DB, statement string) error {
	_, err := db.ExecContext(ctx, statement)
	return err
}

func newBankOf(t *testing.T, migrate func(context.Context) error, accounts int, b *bank,
	exec func(ctx context.Context, statement string) error,
) *bank {
	t.Helper()
	if err := migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, statement := range schemaOf(accounts) {
		if err := exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// A transfer is one of two between the same accounts, in opposite directions.
type transfer struct {
	bank     *bank
	id       string
	from, to int
	both     *sync.WaitGroup // has each of the two once
	runs     atomic.Int32
	failed   *atomic.Int32 // counts the runs that the database refused
}

// move makes the transfer. Its first run takes its first account before the other one of the pair takes that.
func (m *transfer) move(ctx context.Context) error {
	err := m.bank.exec(ctx, fmt.Sprintf("UPDATE accounts SET cents = cents - 10 WHERE id = %d", m.from))
	if m.runs.Add(1) == 1 {
		m.both.Done()
		m.both.Wait()
	}
	if err == nil {
		err = m.bank.exec(ctx, fmt.Sprintf("UPDATE accounts SET cents = cents + 10 WHERE id = %d", m.to))
	}
	if err == nil {
		err = m.bank.exec(ctx, "INSERT INTO moves VALUES ('"+m.id+"')")
	}
	if err != nil {
		m.failed.Add(1)
	}
	return err
}

// goOn writes after a deadlock as if nothing had happened.
func (m *transfer) goOn(ctx context.Context) {
	_ = m.bank.exec(ctx, "INSERT INTO moves VALUES ('late')")
	_ = m.bank.exec(ctx, fmt.Sprintf("UPDATE accounts SET cents = cents + 10 WHERE id = %d", m.to))
}

// faces are the ways in which a transfer's handler is called and says how it went. They return a function that sends
// one, and an error if it is not done.
var faces = map[string]func(t *testing.T, b *bank, after func(*transfer, context.Context)) func(m *transfer) error{
	"HTTP, answers 201": overHTTP(func(w http.ResponseWriter, _ *http.Request, _ error) error {
		w.WriteHeader(http.StatusCreated)
		return nil
	}),
	"HTTP, answers 500": overHTTP(func(w http.ResponseWriter, _ *http.Request, err error) error {
		if err != nil {
			http.Error(w, "try again", http.StatusInternalServerError)
			return nil
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	}),
	"HTTP, returns the error": overHTTP(func(w http.ResponseWriter, _ *http.Request, err error) error {
		if err == nil {
			w.WriteHeader(http.StatusCreated)
			return nil
		}
		return fmt.Errorf("move: %w", err)
	}),
	"HTTP, returns another error": overHTTP(func(w http.ResponseWriter, _ *http.Request, err error) error {
		if err == nil {
			w.WriteHeader(http.StatusCreated)
			return nil
		}
		return oncemill.Permanent(errors.New("no luck"))
	}),
	"HTTP, calls Fail": overHTTP(func(w http.ResponseWriter, r *http.Request, err error) error {
		if err != nil {
			http.Error(w, "try again", http.StatusInternalServerError)
			idempotencykey.Fail(r, fmt.Errorf("move: %w", err))
			return nil
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	}),
	"HTTP, panics with the error": overHTTP(func(w http.ResponseWriter, _ *http.Request, err error) error {
		if err != nil {
			panic(fmt.Errorf("move: %w", err))
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	}),
	"HTTP, aborts": overHTTP(func(w http.ResponseWriter, _ *http.Request, err error) error {
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	}),
	"webhook":         overWebhook(func(err error) error { return err }),
	"webhook, panics": overWebhook(mustNot),
	"worker":          overProcess(func(err error) error { return err }),
	"worker, panics":  overProcess(mustNot),
}

func mustNot(err error) error {
	if err != nil {
		panic(fmt.Errorf("move: %w", err))
	}
	return nil
}

func overHTTP(answer func(w http.ResponseWriter, r *http.Request, err error) error) func(
	t *testing.T, b *bank, after func(*transfer, context.Context),
) func(m *transfer) error {
	return func(t *testing.T, b *bank, after func(*transfer, context.Context)) func(m *transfer) error {
		t.Helper()
		var all sync.Map // transfers by their keys
		m := keytest.NewMiddleware(t, keytest.NewGuard(t, b.inbox, oncemill.Policy{}), idempotencykey.Config{})
		mux := http.NewServeMux()
		mux.Handle(keytest.Route, m.WrapFunc(func(w http.ResponseWriter, r *http.Request) error {
			found, _ := all.Load(r.Header.Get("Idempotency-Key"))
			m := found.(*transfer)
			err := m.move(r.Context())
			if err != nil {
				after(m, r.Context())
			}
			return answer(w, r, err)
		}))
		rg := keytest.ServeHandler(t, mux)
		return func(m *transfer) error {
			all.Store(m.id, m)
			if a := rg.Send("POST", keytest.Route, "{}", keytest.Key(m.id)); a.Status != http.StatusCreated {
				return fmt.Errorf("answered %d %s: %w", a.Status, a.Body, a.Err)
			}
			return nil
		}
	}
}

// byHeader believes the sender.
type byHeader struct{}

func (byHeader) Verify(h http.Header, _ []byte) (webhook.Event, error) {
	return webhook.Event{ID: h.Get("Event")}, nil
}

func overWebhook(result func(error) error) func(
	t *testing.T, b *bank, after func(*transfer, context.Context),
) func(m *transfer) error {
	return func(t *testing.T, b *bank, after func(*transfer, context.Context)) func(m *transfer) error {
		t.Helper()
		var all sync.Map
		publish := func(ctx context.Context, messages ...producer.Message) error {
			found, _ := all.Load(messages[0].Header[webhook.HeaderEventID])
			m := found.(*transfer)
			err := m.move(ctx)
			if err != nil {
				after(m, ctx)
			}
			return result(err)
		}
		rc, err := webhook.New(keytest.NewGuard(t, b.inbox, oncemill.Policy{}), webhook.PublisherFunc(publish),
			webhook.Config{Sender: "shop", Verifier: byHeader{}, Topic: "moves"})
		if err != nil {
			t.Fatal(err)
		}
		rg := keytest.ServeHandler(t, rc)
		return func(m *transfer) error {
			all.Store(m.id, m)
			if a := rg.Send("POST", "/", "{}", keytest.Header("Event", m.id)); a.Status/100 != 2 {
				return fmt.Errorf("answered %d %s: %w", a.Status, a.Body, a.Err)
			}
			return nil
		}
	}
}

func overProcess(result func(error) error) func(
	t *testing.T, b *bank, after func(*transfer, context.Context),
) func(m *transfer) error {
	return func(t *testing.T, b *bank, after func(*transfer, context.Context)) func(m *transfer) error {
		t.Helper()
		once, err := consumer.New(b.inbox, consumer.Config{
			Group: "bank", Policy: oncemill.Policy{Logger: keytest.Quiet()},
		})
		if err != nil {
			t.Fatal(err)
		}
		return func(m *transfer) error {
			d := consumer.Delivery{Handler: "move", Topic: "moves", Header: producer.Header{producer.HeaderID: m.id}}
			decision := once.Process(t.Context(), d, func(ctx context.Context) error {
				err := m.move(ctx)
				if err != nil {
					after(m, ctx)
				}
				return result(err)
			})
			if decision.Action != consumer.Ack {
				return fmt.Errorf("decided %v: %w", decision.Action, decision.Err)
			}
			return decision.Err
		}
	}
}

// TestDeadlock_CostsNoEffectAndNoAttempt: of two transfers that meet, the database rolls one back, and that is made
// again at once, whatever its handler did after the deadlock and whatever it said. There are some 60 deadlocks in each
// database, and 660 with ONCEMILL_PROOF=1.
func TestDeadlock_CostsNoEffectAndNoAttempt(t *testing.T) {
	t.Parallel()
	pairs := 3
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		pairs = 30
	}
	for database, open := range banks {
		for what, after := range map[string]func(*transfer, context.Context){
			"stops": func(*transfer, context.Context) {}, "goes on": (*transfer).goOn,
		} {
			for face, over := range faces {
				t.Run(database+"/"+face+"/"+what, func(t *testing.T) {
					t.Parallel()
					b := open(t, 2*pairs)
					meet(t, b, over(t, b, after), pairs)
				})
			}
		}
	}
}

// meet sends pairs of transfers that meet in a deadlock, and wants all of them to be done, once.
func meet(t *testing.T, b *bank, send func(m *transfer) error, pairs int) {
	t.Helper()
	var failed atomic.Int32
	for i := range pairs {
		var both, all sync.WaitGroup
		both.Add(2)
		for _, m := range []*transfer{{from: 2 * i, to: 2*i + 1}, {from: 2*i + 1, to: 2 * i}} {
			m.bank, m.id, m.both, m.failed = b, fmt.Sprintf("move-%d-%d", m.from, m.to), &both, &failed
			all.Go(func() {
				if err := send(m); err != nil {
					t.Errorf("%s: %v", m.id, err)
				}
			})
		}
		all.Wait()
	}
	if int(failed.Load()) < pairs {
		t.Errorf("%d deadlocks, want %d at least", failed.Load(), pairs)
	}
	moves, different := b.rows(t, "moves"), b.rows(t, "(SELECT DISTINCT id FROM moves) AS d")
	if moves != 2*pairs || different != 2*pairs {
		t.Errorf("%d moves of %d transfers, want one of each of %d", moves, different, 2*pairs)
	}
	if wrong := b.rows(t, "accounts WHERE cents <> 1000"); wrong != 0 {
		t.Errorf("%d accounts are wrong", wrong)
	}
	records, done := b.rows(t, "oncemill_dedup"), b.rows(t, "oncemill_dedup WHERE kind = 'succeeded' AND attempts = 1")
	if records != 2*pairs || done != 2*pairs {
		t.Errorf("%d records, %d of a success at the first attempt, want %d", records, done, 2*pairs)
	}
}

// TestDeadlock_AndThenACommitIsNeverRunAgain: a handler goes on, and then commits by a statement of its own. MariaDB
// commits what it wrote after the deadlock, and PostgreSQL nothing, but there all that is seen is the end as well.
func TestDeadlock_AndThenACommitIsNeverRunAgain(t *testing.T) {
	t.Parallel()
	for database, open := range banks {
		for face, over := range faces {
			t.Run(database+"/"+face, func(t *testing.T) {
				t.Parallel()
				b := open(t, 2)
				send := over(t, b, func(m *transfer, ctx context.Context) {
					m.goOn(ctx)
					_ = b.exec(ctx, "COMMIT")
				})
				var failed atomic.Int32
				var both, all sync.WaitGroup
				both.Add(2)
				two := []*transfer{{from: 0, to: 1}, {from: 1, to: 0}}
				for _, m := range two {
					m.bank, m.id, m.both, m.failed = b, fmt.Sprint("move-", m.from), &both, &failed
					all.Go(func() { _ = send(m) })
				}
				all.Wait()
				for _, m := range two {
					_ = send(m)
					if n := m.runs.Load(); n != 1 {
						t.Errorf("%s was run %d times", m.id, n)
					}
				}
				done, late := b.rows(t, "moves WHERE id <> 'late'"), b.rows(t, "moves WHERE id = 'late'")
				if done != 1 || late > 1 || late == 1 && database != "MariaDB" {
					t.Errorf("%d effects, and %d of the other handler after the deadlock", done, late)
				}
				if n := b.rows(t, "oncemill_dedup WHERE kind = 'unknown'"); n != 1 {
					t.Errorf("%d runs of unknown outcome, want the other handler's", n)
				}
			})
		}
	}
}

// TestCommit_ByTheHandlerIsNeverRunAgain, nor by a statement that commits, whatever the handler says. What it writes
// afterwards is refused.
func TestCommit_ByTheHandlerIsNeverRunAgain(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for database, open := range banks {
		for _, end := range []string{"COMMIT", "CREATE TABLE made (n INT)"} {
			if database != "MariaDB" && end != "COMMIT" {
				continue // PostgreSQL's CREATE TABLE is part of the transaction
			}
			for face, answer := range map[string]func(w http.ResponseWriter, r *http.Request) error{
				"returns nil":      func(http.ResponseWriter, *http.Request) error { return nil },
				"returns an error": func(http.ResponseWriter, *http.Request) error { return boom },
				"calls Fail": func(_ http.ResponseWriter, r *http.Request) error {
					idempotencykey.Fail(r, boom)
					return nil
				},
				"answers 500": func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(500); return nil },
				"panics":      func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) },
			} {
				t.Run(database+"/"+end+"/"+face, func(t *testing.T) {
					t.Parallel()
					b := open(t, 1)
					l := &keytest.Ledger{}
					g := keytest.NewGuard(t, b.inbox, oncemill.Policy{Backoff: oncemill.Backoff{Min: 1, Max: 1}})
					m := keytest.NewMiddleware(t, g, idempotencykey.Config{
						Release: idempotencykey.ServerErrors,
					})
					mux := http.NewServeMux()
					mux.Handle(keytest.Route, m.WrapFunc(func(w http.ResponseWriter, r *http.Request) error {
						l.Add("")
						if err := b.exec(r.Context(), "INSERT INTO moves VALUES ('early')"); err != nil {
							t.Error(err)
						}
						_ = b.exec(r.Context(), end)
						if database == "MariaDB" {
							if err := b.exec(r.Context(), "INSERT INTO moves VALUES ('late')"); err == nil {
								t.Error("a write after the end of the transaction is not refused")
							}
						}
						return answer(w, r)
					}))
					rg := keytest.ServeHandler(t, mux)
					for n := range 4 {
						a := rg.Pay("k")
						if n == 0 && face == "panics" {
							continue // its client gets nothing
						}
						keytest.WantProblem(t, a, 500, idempotencykey.CodeUnknown)
					}
					keytest.WantRuns(t, l, 1)
					if early, late := b.rows(t, "moves WHERE id = 'early'"), b.rows(t, "moves WHERE id = 'late'"); early != 1 ||
						late != 0 {
						t.Errorf("%d effects before the end of the transaction and %d after it are committed", early, late)
					}
					if n := b.rows(t, "oncemill_dedup"); n != 1 {
						t.Errorf("%d records, want the run's alone", n)
					}
				})
			}
		}
	}
}
