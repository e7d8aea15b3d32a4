package sqlitestore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// schemaVersion is that of schema.sql. A change of it comes with the statements that lead from the version before.
const schemaVersion = 4

// changes lead from each version to the next. What follows in schema.sql adds the tables.
var changes = [schemaVersion]string{
	1: `
ALTER TABLE "{table}" ADD COLUMN holder TEXT;
ALTER TABLE "{table}" ADD COLUMN took_ms INTEGER;
ALTER TABLE "{table}" ADD COLUMN history TEXT;
`,
	2: `
ALTER TABLE "{table}" ADD COLUMN reruns INTEGER;
`,
	3: `
ALTER TABLE "{table}" ADD COLUMN crashes INTEGER;
`,
}

//go:embed schema.sql
var schema string

const versionSQL = `
CREATE TABLE IF NOT EXISTS "{table}_version" (version INTEGER NOT NULL) STRICT;
DELETE FROM "{table}_version";
INSERT INTO "{table}_version" VALUES ({version});`

// Migrate makes the tables and the index where they are missing, and adds to those of versions before. You may repeat
// it. Several processes may call it at once, while others use the store. It leaves a table of a newer program alone and
// returns a [*dedupstore.SetupError].
func (s *Store) Migrate(ctx context.Context) error {
	for {
		err := s.migrate(context.WithoutCancel(ctx)) // it is short
		if !isBusy(err) {
			return err
		}
		if !pace.Sleep(ctx, lastPause) {
			return fmt.Errorf("sqlitestore: migrate: %w: %w", context.Cause(ctx), err)
		}
	}
}

func (s *Store) migrate(ctx context.Context) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("sqlitestore: migrate: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	has, err := s.version(ctx, tx)
	if has > schemaVersion {
		return s.schemaError(has)
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, s.script(has))
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("sqlitestore: migrate: %w", err)
	}
	return nil
}

func (s *Store) schemaError(has int) error {
	problem := "is missing: call Migrate"
	switch {
	case has > schemaVersion:
		problem = fmt.Sprintf("has version %d, and this program knows %d: update the program", has, schemaVersion)
	case has > 0:
		problem = fmt.Sprintf("has version %d, want %d: call Migrate", has, schemaVersion)
	}
	return &dedupstore.SetupError{
		Package: "sqlitestore", Subject: fmt.Sprintf("table %q", s.config.Table), Problem: problem,
	}
}

// A rowQuerier is a database, a connection or a transaction.
type rowQuerier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// version is that of the table; 0: there is none.
func (s *Store) version(ctx context.Context, q rowQuerier) (v int, err error) {
	var tables int
	err = q.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN (?, ?)`,
		s.config.Table, s.config.Table+"_version").Scan(&tables)
	if err != nil || tables < 2 {
		return 0, err
	}
	err = q.QueryRowContext(ctx, s.in(`SELECT coalesce(max(version), 0) FROM "{table}_version"`)).Scan(&v)
	return v, err
}

// in names the table in a query.
func (s *Store) in(query string) string { return strings.ReplaceAll(query, "{table}", s.config.Table) }

// statements are those of operations. They belong to the database, which closes them.
type statements struct {
	load, save, touch, mark, clean *sql.Stmt
}

// prepare looks at the version of the table before the first operation, and prepares the statements.
func (s *Store) prepare(ctx context.Context) error {
	if s.prepared.Load() {
		return nil
	}
	s.preparing.Lock()
	defer s.preparing.Unlock()
	if s.prepared.Load() {
		return nil
	}
	has, err := s.version(ctx, s.db)
	for isBusy(err) && pace.Sleep(ctx, lastPause) { // a new connection sets the journal mode, which waits for nobody
		has, err = s.version(ctx, s.db)
	}
	switch {
	case err != nil:
		return fmt.Errorf("sqlitestore: look at the table: %w", ended(ctx, err))
	case has != schemaVersion:
		return s.schemaError(has)
	}
	var made statements
	for query, stmt := range map[string]**sql.Stmt{
		loadSQL: &made.load, saveSQL: &made.save, touchSQL: &made.touch, markSQL: &made.mark, cleanSQL: &made.clean,
	} {
		*stmt, err = s.db.PrepareContext(ctx, s.in(query)) //nolint:sqlclosecheck // they are the store's
		if err != nil {
			return fmt.Errorf("sqlitestore: prepare: %w", ended(ctx, err))
		}
	}
	s.statements = made
	s.prepared.Store(true)
	return nil
}
