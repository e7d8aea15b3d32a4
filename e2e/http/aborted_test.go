package http_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// newBank makes an inbox in PostgreSQL, beside a table of accounts that has one.
func newBank(t *testing.T, isolation pgx.TxIsoLevel) (*pgxpool.Pool, *pgstore.Store) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), newPlace(t, onPostgresInbox))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := pgstore.New(pool, pgstore.Config{Logger: keytest.Quiet(), Isolation: isolation})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		`CREATE TABLE accounts (name text PRIMARY KEY, balance integer NOT NULL DEFAULT 0)`,
		`INSERT INTO accounts VALUES ('taken')`,
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return pool, s
}

const openTaken = `INSERT INTO accounts VALUES ('taken')`

// TestDatabase_ClientErrorAfterAFailedStatementIsKeptIfItWasInASavepoint is about handlers that find by a unique
// violation that there is a conflict, and answer 409. PostgreSQL commits nothing any more then, unless the statement
// stands in a savepoint.
func TestDatabase_ClientErrorAfterAFailedStatementIsKeptIfItWasInASavepoint(t *testing.T) {
	t.Parallel()
	_, s := newBank(t, "")
	for name, try := range map[string]func(ctx context.Context, tx pgx.Tx) bool{
		"savepoint": func(ctx context.Context, tx pgx.Tx) bool {
			err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error { _, err := inner.Exec(ctx, openTaken); return err })
			_, refused := errors.AsType[*pgconn.PgError](err)
			return refused
		},
		"on conflict": func(ctx context.Context, tx pgx.Tx) bool {
			tag, err := tx.Exec(ctx, openTaken+` ON CONFLICT DO NOTHING`)
			return err == nil && tag.RowsAffected() == 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := keytest.NewGuard(t, s.Inbox(), oncemill.Policy{})
			rg := keytest.Serve(t, g, idempotencykey.Config{Group: name},
				func(w http.ResponseWriter, r *http.Request) {
					if try(r.Context(), pgstore.Tx(r.Context())) {
						w.WriteHeader(http.StatusConflict)
					}
				})
			keytest.Want(t, rg.Pay("k"), 409, false)
			keytest.Want(t, rg.Pay("k"), 409, true)
		})
	}
}

func TestDatabase_ResponseOverAnAbortedTransactionIsRefusedAtOnceAndLogged(t *testing.T) {
	t.Parallel()
	_, s := newBank(t, "")
	var log safeBuffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	policy := oncemill.Policy{Logger: logger, MaxAttempts: 2, Backoff: oncemill.Backoff{Min: time.Nanosecond, Max: time.Nanosecond}}
	for _, status := range []int{201, 409} {
		l := &keytest.Ledger{}
		rg := keytest.Serve(t, keytest.NewGuard(t, s.Inbox(), policy), idempotencykey.Config{},
			func(w http.ResponseWriter, r *http.Request) {
				l.Add("")
				if _, err := pgstore.Tx(r.Context()).Exec(r.Context(), openTaken); err == nil {
					t.Error("the account could be opened twice")
				}
				w.WriteHeader(status)
			})
		k := keytest.Key(http.StatusText(status))
		pay := func() keytest.Answer { return rg.Send("POST", keytest.Route, "{}", k) }
		a := pay()
		keytest.WantProblem(t, a, 500, idempotencykey.CodeUncommitted)
		if a.Header.Get("Retry-After") == "" || a.Replayed() {
			t.Errorf("header %v", a.Header)
		}
		keytest.Until(t, "the attempts are spent", func() bool { a = pay(); return a.Status == 500 && a.Replayed() })
		keytest.WantProblem(t, a, 500, idempotencykey.CodeUncommitted)
		keytest.WantRuns(t, l, 2)
	}
	if s := log.String(); strings.Count(s, "does not count") != 4 || !strings.Contains(s, "did not return the error") {
		t.Errorf("logged: %s", s)
	}
}

func TestDatabase_ClientErrorAfterAFailedStatementIsKeptInSQLite(t *testing.T) {
	t.Parallel()
	b := openFor(t, onSQLiteInbox, newPlace(t, onSQLiteInbox))
	rg := keytest.Serve(t, keytest.NewGuard(t, b.Store, oncemill.Policy{}), idempotencykey.Config{},
		func(w http.ResponseWriter, r *http.Request) {
			if err := b.Pay(r, "refusal"); err != nil {
				t.Error(err)
			}
			if _, err := sqlitestore.Tx(r.Context()).ExecContext(r.Context(),
				`INSERT INTO payments (id) VALUES (NULL)`); err != nil {
				w.WriteHeader(http.StatusConflict)
			}
		})
	keytest.Want(t, rg.Pay("k"), 409, false)
	keytest.Want(t, rg.Pay("k"), 409, true)
	if n := b.Payments("refusal"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// TestDatabase_ServerErrorBecauseOfOthersIsNoResponse: the handler is called again.
func TestDatabase_ServerErrorBecauseOfOthersIsNoResponse(t *testing.T) {
	t.Parallel()
	pool, s := newBank(t, pgx.RepeatableRead)
	for name, release := range map[string]func(int) bool{"kept": nil, "released": idempotencykey.ServerErrors} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			c := idempotencykey.Config{Group: name, Release: release}
			g := keytest.NewGuard(t, s.Inbox(), oncemill.Policy{})
			rg := keytest.Serve(t, g, c, func(w http.ResponseWriter, r *http.Request) {
				ctx, tx := r.Context(), pgstore.Tx(r.Context())
				var balance int
				if err := tx.QueryRow(ctx, `SELECT balance FROM accounts`).Scan(&balance); err != nil {
					t.Error(err)
				}
				if runs.Add(1) == 1 { // another transaction
					if _, err := pool.Exec(ctx, `UPDATE accounts SET balance = balance + 1`); err != nil {
						t.Error(err)
					}
				}
				if _, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + 1`); err != nil {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				w.WriteHeader(http.StatusCreated)
			})
			keytest.Want(t, rg.Pay("k"), 201, false)
			keytest.Want(t, rg.Pay("k"), 201, true)
			if runs.Load() != 2 {
				t.Errorf("%d runs, want 2", runs.Load())
			}
		})
	}
}
