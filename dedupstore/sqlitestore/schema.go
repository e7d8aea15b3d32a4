package sqlitestore

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"
)

// schemaVersion is that of schema.sql. A change of it comes with the statements that lead from the version before.
const schemaVersion = 1

//go:embed schema.sql
var schema string

const versionSQL = `
CREATE TABLE IF NOT EXISTS "{table}_version" (version INTEGER NOT NULL) STRICT;
DELETE FROM "{table}_version";
INSERT INTO "{table}_version" VALUES ({version});`

// Migrate makes the table and its index where they are missing. It only adds, may be repeated, and may be called by
// several processes at once, while others use the store. A table of a newer program is left alone: [*SchemaError].
func (s *Store) Migrate(ctx context.Context) error {
	if err := s.migrate(ctx); err != nil {
		return fmt.Errorf("migrate dedup records: %w", err)
	}
	return nil
}

func (s *Store) migrate(ctx context.Context) error {
	if err := s.gate.enter(ctx, false); err != nil {
		return err
	}
	defer s.gate.leave()
	for {
		err := s.tryMigrating(ctx)
		if !isBusy(err) {
			return err
		}
		if !sleep(ctx, lastPause) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

func (s *Store) tryMigrating(ctx context.Context) error {
	conn, err := s.connect(ctx, always)
	if err != nil {
		return err
	}
	t := &lockedTx{conn: conn}
	if err := t.hurry(ctx); err != nil {
		t.discard()
		return err
	}
	defer t.giveBack()
	// The driver may say that the context has ended although the transaction has begun: it would stay open.
	detached := context.WithoutCancel(ctx)
	if _, err := conn.ExecContext(detached, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err = s.write(ctx, conn)
	end := "COMMIT"
	if err != nil {
		end = "ROLLBACK"
	}
	_, ending := conn.ExecContext(detached, end)
	if ending != nil {
		t.discard()
	}
	if err == nil {
		err = ending
	}
	return err
}

func (s *Store) write(ctx context.Context, conn *sql.Conn) error {
	statements := s.in(schema)
	switch has, err := s.version(ctx, conn); {
	case err != nil:
		return err
	case has > schemaVersion:
		return &SchemaError{Table: s.config.Table, Has: has, Want: schemaVersion}
	case has < schemaVersion:
		statements += strings.ReplaceAll(s.in(versionSQL), "{version}", fmt.Sprint(schemaVersion))
	}
	_, err := conn.ExecContext(ctx, statements)
	return err
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
	err = q.QueryRowContext(ctx, s.in(`SELECT version FROM "{table}_version"`)).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return v, err
}

// in names the table in a query.
func (s *Store) in(query string) string { return strings.ReplaceAll(query, "{table}", s.config.Table) }

// statements are those of operations. They belong to the database, which closes them.
type statements struct {
	load, save, update, touch, mark, clean *sql.Stmt
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
	conn, err := s.connect(ctx, always)
	if err != nil {
		return fmt.Errorf("sqlitestore: look at the table: %w", ended(ctx, err))
	}
	has, err := s.version(ctx, conn)
	conn.Close()
	switch {
	case err != nil:
		return fmt.Errorf("sqlitestore: look at the table: %w", ended(ctx, err))
	case has != schemaVersion:
		return &SchemaError{Table: s.config.Table, Has: has, Want: schemaVersion}
	}
	var made statements
	for query, stmt := range map[string]**sql.Stmt{
		loadSQL: &made.load, saveSQL: &made.save, updateSQL: &made.update, touchSQL: &made.touch, markSQL: &made.mark, cleanSQL: &made.clean,
	} {
		var err error
		if *stmt, err = s.db.PrepareContext(ctx, s.in(query)); err != nil { //nolint:sqlclosecheck // they are the store's
			made.close()
			return fmt.Errorf("sqlitestore: prepare: %w", ended(ctx, err))
		}
	}
	s.statements = made
	s.prepared.Store(true)
	return nil
}

func (m statements) close() {
	for _, stmt := range []*sql.Stmt{m.load, m.save, m.update, m.touch, m.mark, m.clean} {
		if stmt != nil {
			stmt.Close()
		}
	}
}
