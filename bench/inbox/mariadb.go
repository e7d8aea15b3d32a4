package main

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
)

// onMariaDB measures the same as on PostgreSQL.
func onMariaDB(ctx context.Context, b *kit.Bench) (err error) {
	r, err := startMariaDB(b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	t, err := b.Compare(ctx, "MariaDB, fresh messages, 16 at once", b.Rounds,
		r.fresh(byHandMariaDB, 16, openByHandMariaDB), r.fresh(inboxMariaDB, 16, openInboxMariaDB))
	if err != nil {
		return err
	}
	if t.Has(inboxMariaDB, byHandMariaDB) {
		b.Aim("mariadb_tier2_vs_handwritten", t.Ratio(inboxMariaDB, byHandMariaDB, rate), .6, 0)
	}
	t, err = b.Compare(ctx, "MariaDB, fresh messages, 128 at once", b.Rounds,
		r.fresh(byHandMariaDB, 128, openByHandMariaDB), r.fresh(batchesMariaDB, 128, openBatchesMariaDB))
	if err != nil {
		return err
	}
	if t.Has(batchesMariaDB, byHandMariaDB) {
		b.Aim("mariadb_tier2_batch_vs_handwritten", t.Ratio(batchesMariaDB, byHandMariaDB, rate), 3, 0)
	}
	t, err = b.Compare(ctx, "MariaDB, duplicates, 16 at once", b.Rounds,
		r.duplicates(byHandMariaDB, openByHandMariaDB), r.duplicates(inboxMariaDB, openInboxMariaDB))
	if err != nil {
		return err
	}
	if t.Has(inboxMariaDB, byHandMariaDB) {
		b.Aim("mariadb_duplicates_tier2_vs_handwritten", t.Ratio(inboxMariaDB, byHandMariaDB, rate), 1, 0)
	}
	return nil
}

// A handWrittenMariaDB is to MariaDB what a handWritten is to PostgreSQL.
type handWrittenMariaDB struct{ db *sql.DB }

func openByHandMariaDB(ctx context.Context, c clients) (system, error) {
	_, err := c.mariadb.ExecContext(ctx,
		`CREATE TABLE inbox (id VARCHAR(64) PRIMARY KEY, at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)`)
	return handWrittenMariaDB{c.mariadb}, err
}

func (h handWrittenMariaDB) handle(ctx context.Context, id string, _ []byte) error {
	tx, err := h.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, `INSERT IGNORE INTO inbox (id) VALUES (?)`, id)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, tx.Rollback())
	}
	if err := insertInto(ctx, tx, id); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (handWrittenMariaDB) close() {}

// insertInto is the statement of every handler.
func insertInto(ctx context.Context, tx *sql.Tx, ids ...string) error {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	_, err := tx.ExecContext(ctx,
		`INSERT INTO effects (id, cents) VALUES (?, 1200)`+strings.Repeat(`, (?, 1200)`, len(ids)-1), args...)
	return err
}

func openMariaDB(ctx context.Context, c clients) (*mysqlstore.Store, error) {
	store, err := mysqlstore.New(c.mariadb, mysqlstore.Config{})
	if err != nil {
		return nil, err
	}
	return store, store.Migrate(ctx)
}

func openInboxMariaDB(ctx context.Context, c clients) (system, error) {
	store, err := openMariaDB(ctx, c)
	if err != nil {
		return nil, err
	}
	return newGuarded(store.Inbox(), func(ctx context.Context, id string) error {
		return insertInto(ctx, mysqlstore.Tx(ctx), id)
	}, nothing)
}

func openBatchesMariaDB(ctx context.Context, c clients) (system, error) {
	store, err := openMariaDB(ctx, c)
	if err != nil {
		return nil, err
	}
	return newBatched(ctx, store.Inbox(), func(ctx context.Context, ids []string) error {
		return insertInto(ctx, mysqlstore.Tx(ctx), ids...)
	})
}
