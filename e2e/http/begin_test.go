package http_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// An interrupted inbox loses its database after a claim, and before the transaction.
type interrupted struct {
	dedupstore.Transactor
	between func()
}

// InTx implements [dedupstore.Transactor].
func (i interrupted) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	i.between()
	return i.Transactor.InTx(ctx, runs, work)
}

// TestPostgres_ATransactionThatCannotBeginKeepsNoResponse: the handler is not called, and a repeat calls it.
func TestPostgres_ATransactionThatCannotBeginKeepsNoResponse(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Shared(t).NewDatabase(t).DSN()
	b, closeAll, err := openPostgres(t.Context(), dsn, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	var away atomic.Bool // for the next connection
	config.ConnConfig.RuntimeParams["application_name"] = "interrupted"
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		if away.Swap(false) {
			return errors.New("the server is away")
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	operator, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { operator.Close(context.Background()) })
	s, err := pgstore.New(pool, pgstore.Config{Logger: keytest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	interrupt := true
	store := interrupted{s.Inbox(), func() {
		if interrupt {
			away.Store(true)
			if _, err := operator.Exec(t.Context(),
				`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
				WHERE application_name = 'interrupted'`); err != nil {
				t.Error(err)
			}
		}
		interrupt = false
	}}
	policy := oncemill.Policy{MaxAttempts: 1, Backoff: oncemill.Backoff{Min: 1, Max: 1}}
	rg := keytest.Serve(t, keytest.NewGuard(t, store, policy), idempotencykey.Config{},
		func(w http.ResponseWriter, r *http.Request) {
			if err := b.Pay(r, "k"); err != nil {
				w.WriteHeader(500)
				return
			}
			w.WriteHeader(201)
			io.WriteString(w, "paid")
		})
	keytest.WantProblem(t, rg.Pay("k"), 503, idempotencykey.CodeUnavailable)
	keytest.Want(t, rg.Pay("k"), 201, false)
	if b.Payments("k") != 1 || b.Rows("k") != 1 {
		t.Errorf("%d payments, %d rows", b.Payments("k"), b.Rows("k"))
	}
}

// TestPostgres_ARestartBetweenStatementsIsTheHandlersServerError keeps what docs/http.md says of it.
func TestPostgres_ARestartBetweenStatementsIsTheHandlersServerError(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]func(int) bool{"kept": nil, "released": idempotencykey.ServerErrors} {
		second := 201
		if release == nil {
			second = 500
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := postgrestest.Shared(t).NewDatabase(t).Pool(t)
			s, err := pgstore.New(pool, pgstore.Config{Logger: keytest.Quiet()})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			var again atomic.Bool
			policy := oncemill.Policy{Backoff: oncemill.Backoff{Min: 1, Max: 1}}
			rg := keytest.Serve(t, keytest.NewGuard(t, s.Inbox(), policy), idempotencykey.Config{Release: release},
				func(w http.ResponseWriter, r *http.Request) {
					tx := pgstore.Tx(r.Context())
					var pid int
					err := tx.QueryRow(r.Context(), `SELECT pg_backend_pid()`).Scan(&pid)
					if err == nil && !again.Swap(true) {
						if _, err := pool.Exec(r.Context(), `SELECT pg_terminate_backend($1, 10000)`, pid); err != nil {
							t.Error(err)
						}
					}
					if _, err := tx.Exec(r.Context(), `SELECT 1`); err != nil {
						w.WriteHeader(500)
						return
					}
					w.WriteHeader(201)
				})
			keytest.Want(t, rg.Pay("k"), 500, false)
			keytest.Want(t, rg.Pay("k"), second, second == 500)
		})
	}
}
