package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/txctx"
)

// own is a transaction of a handler's own.
type own struct {
	exec             func(query string, args ...any) error
	join             func(ctx context.Context, s *Store) error
	commit, rollback func() error
}

func ownPgx(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel) own {
	ctx := context.Background()
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	return own{
		func(query string, args ...any) error { _, err := tx.Exec(ctx, query, args...); return err },
		func(ctx context.Context, s *Store) error { return s.Join(ctx, tx) },
		func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) },
	}
}

func ownSQL(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel) own {
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { db.Close() })
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sqlLevels[level]})
	if err != nil {
		t.Fatal(err)
	}
	return own{
		func(query string, args ...any) error { _, err := tx.Exec(query, args...); return err },
		func(ctx context.Context, s *Store) error { return s.JoinSQL(ctx, tx) },
		tx.Commit, tx.Rollback,
	}
}

const insertEffect = `INSERT INTO effects VALUES ($1, 1)`

func TestJoin_SettlesInTheHandlersTransaction(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	g := newGuard(t, s, long)
	for name, begin := range map[string]func(*testing.T, *pgxpool.Pool, pgx.TxIsoLevel) own{"pgx": ownPgx,
		"sql": ownSQL} {
		for range 2 {
			res, err := g.Run(t.Context(), callOf(name), func(ctx context.Context) (dedupstore.Outcome, error) {
				tx := begin(t, pool, pgx.Serializable)
				err := errors.Join(tx.exec(insertEffect, name), tx.join(ctx, s))
				claim(t, s, request(name), dedupstore.Busy)
				err = errors.Join(err, tx.commit())
				claim(t, s, request(name), dedupstore.Done)
				return dedupstore.Outcome{}, err
			})
			if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
				t.Errorf("%s: the run ended with %+v, %v", name, res, err)
			}
		}
		wantEffects(t, pool, name, 1)
	}
}

func TestJoin_WhatIsRolledBackIsNotSettled(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	_, err := newGuard(t, s, long).Run(t.Context(), callOf("1"), func(ctx context.Context) (dedupstore.Outcome, error) {
		tx := ownPgx(t, pool, "")
		return dedupstore.Outcome{}, errors.Join(tx.exec(insertEffect, "1"), tx.join(ctx, s), tx.rollback(),
			errors.New("no"))
	})
	if _, ok := answertest.Is(err, oncemill.StatusRetry); !ok {
		t.Errorf("the run returned %v, want a retry", err)
	}
	wantEffects(t, pool, "1", 0)
	until(t, "the retry", func() bool { return ask(t, s, request("1")).Status == dedupstore.AcquiredRun })
}

func TestJoin_AnErrorAfterTheCommitDoesNotUndoIt(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	_, err := newGuard(t, s, long).Run(t.Context(), callOf("1"), func(ctx context.Context) (dedupstore.Outcome, error) {
		tx := ownPgx(t, pool, "")
		return dedupstore.Outcome{}, errors.Join(tx.exec(insertEffect, "1"), tx.join(ctx, s), tx.commit(),
			errors.New("too late"))
	})
	if !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("the run returned %v, want ErrClaimLost: it was settled before", err)
	}
	claim(t, s, request("1"), dedupstore.Done)
}

// TestJoin_ARepeatedTransactionIsRefused is for handlers that repeat a transaction whose commit got no answer.
func TestJoin_ARepeatedTransactionIsRefused(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for name, begin := range map[string]func(*testing.T, *pgxpool.Pool, pgx.TxIsoLevel) own{"pgx": ownPgx,
		"sql": ownSQL} {
		c := runOf(t, s, name)
		ctx := txctx.With(t.Context(), &c)
		for i, want := range []error{nil, ErrSettled} {
			tx := begin(t, pool, "")
			if err := tx.exec(insertEffect, name); err != nil {
				t.Fatal(err)
			}
			if err := tx.join(ctx, s); !errors.Is(err, want) {
				t.Errorf("%s: Join %d returned %v, want %v", name, i, err, want)
			}
			if err := tx.commit(); (err == nil) != (want == nil) {
				t.Errorf("%s: commit %d returned %v", name, i, err)
			}
		}
		wantEffects(t, pool, name, 1)
	}
}

func TestJoin_ZombiesCannotCommit(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	c := claim(t, s, brief("1"), dedupstore.AcquiredRun).Claim
	ctx := txctx.With(t.Context(), &c)
	lasts(60 * time.Millisecond)
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	tx := ownPgx(t, pool, "")
	if err := errors.Join(tx.exec(insertEffect, "1"), tx.join(ctx, s)); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("Join returned %v, want ErrClaimLost", err)
	}
	if err := tx.commit(); err == nil {
		t.Error("the zombie committed")
	}
	wantEffects(t, pool, "1", 0)
}

func TestJoin_SaysWhereItHasNoPlace(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	other := newStore(t, pool, Config{Table: "other"})
	tx := begin(t, pool, "")
	if err := s.Join(t.Context(), tx); !errors.Is(err, ErrNoRun) {
		t.Errorf("outside a run Join returned %v, want ErrNoRun", err)
	}
	shadow, err := oncemill.NewGuard(s, oncemill.Policy{Shadow: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shadow.Run(t.Context(), callOf("1"), func(ctx context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{}, s.Join(ctx, tx)
	}); !errors.Is(err, ErrBypassed) {
		t.Errorf("in a run without a claim Join returned %v, want ErrBypassed", err)
	}
	for id, inbox := range map[string]dedupstore.Transactor{"pgx": s.Inbox(), "sql": s.InboxSQL()} {
		if _, err := newGuard(t, inbox, long).Run(t.Context(), callOf(id),
			func(ctx context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{}, s.Join(ctx, tx)
			}); !errors.Is(err, ErrInInbox) {
			t.Errorf("in a run of an inbox Join returned %v, want ErrInInbox", err)
		}
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Errorf("the transaction cannot go on: %v", err)
	}
	c := runOf(t, other, "2")
	if err := s.Join(txctx.With(t.Context(), &c), tx); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("with a claim of another store Join returned %v, want ErrClaimLost", err)
	}
	var none *pgxpool.Tx
	for _, err := range []error{s.Join(t.Context(), nil), s.Join(t.Context(), none), s.JoinSQL(t.Context(), nil)} {
		if invalid, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || invalid.Field != "tx" {
			t.Errorf("without a transaction it returned %v", err)
		}
	}
}
