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
const version = 1

//go:embed schema.sql
var schema string

// SQL returns the statements of Migrate, for your own migration tool. You may repeat them.
func (s *Store) SQL() string {
	return strings.NewReplacer("{table}", s.config.Table, "{version}", fmt.Sprint(version)).Replace(schema)
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
	return m, nil
}

// Migrate makes the tables where they are missing. You may repeat it, and several processes may call it at once. It
// needs the privilege CREATE; programs that use the store need SELECT, INSERT, UPDATE and DELETE on Table, SELECT,
// INSERT and UPDATE on Table_scopes, and SELECT on Table_version. It returns a [*dedupstore.SetupError] if something
// else has the name, or if a newer program made the tables.
func (s *Store) Migrate(ctx context.Context) error {
	plan, err := s.Plan(ctx)
	if err != nil {
		return err
	}
	if plan.Found > version {
		return s.versionError(plan.Found)
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
