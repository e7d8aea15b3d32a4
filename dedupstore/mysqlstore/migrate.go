package mysqlstore

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// version is that of schema.sql.
const version = 2

// change leads from version 1. MySQL cannot tell by itself whether the column is there.
const change = "ALTER TABLE `{table}` ADD COLUMN crashes INT NOT NULL DEFAULT 0"

//go:embed schema.sql
var schema string

// SQL returns the statements that make the tables, for your own migration tool. You may repeat them. Plan returns those
// that change tables of an earlier version.
func (s *Store) SQL() string { return s.in(schema) }

func (s *Store) in(statements string) string {
	return strings.NewReplacer("{table}", s.config.Table, "{version}", fmt.Sprint(version)).Replace(statements)
}

// Plan says what Migrate would do, and changes nothing.
func (s *Store) Plan(ctx context.Context) (dedupstore.Migration, error) {
	m := dedupstore.Migration{Wanted: version}
	err := s.db.QueryRowContext(ctx, "SELECT version FROM `"+s.config.Table+"_version`").Scan(&m.Found)
	if err != nil && !errors.Is(err, sql.ErrNoRows) && number(err) != errNoTable {
		return dedupstore.Migration{}, s.failed("look at the table", err)
	}
	if m.Found < version {
		m.SQL = s.SQL()
	}
	if m.Found == 1 {
		m.SQL = s.in(change) + ";\n" + m.SQL
	}
	return m, nil
}

// Migrate makes the tables where they are missing, and changes those of an earlier version. You may repeat it, and
// several processes may call it at once. It needs the privileges CREATE and ALTER; programs that use the store need
// SELECT, INSERT, UPDATE and DELETE on Table, SELECT, INSERT and UPDATE on Table_scopes, and SELECT on Table_version.
// It returns a [*dedupstore.SetupError] if something else has the name, or if a newer program made the tables.
func (s *Store) Migrate(ctx context.Context) error {
	plan, err := s.Plan(ctx)
	if err != nil {
		return err
	}
	if plan.Found > version {
		return s.versionError(plan.Found)
	}
	if plan.Found == 1 {
		if _, err := s.db.ExecContext(ctx, s.in(change)); err != nil && number(err) != errDuplicateColumn {
			return s.failed("migrate", err)
		}
	}
	ours, err := sqlstore.RunScript(ctx, s.db, s.SQL(), s.config.Table, "record_key")
	switch {
	case err != nil:
		return s.failed("migrate", err)
	case !ours:
		return s.setup(nil, "is there, and is no table of this package: name another one by Config.Table")
	}
	return nil
}

func (s *Store) versionError(found int) error {
	if found > version {
		return s.setup(nil, "has version %d, and this program knows %d: update the program", found, version)
	}
	return s.setup(nil, "has version %d, want %d: call Migrate", found, version)
}
