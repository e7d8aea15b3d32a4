package pgstore

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
)

// version is the schema's that this package needs.
const version = 8

const (
	versionSQL = `SELECT version FROM {settings}`
	presentSQL = `SELECT to_regclass('{settings}') IS NOT NULL, to_regclass('{records}') IS NOT NULL`

	// Missing tables belong where the others are, whatever comes first in the search path.
	staySQL = `
SELECT set_config('search_path', quote_ident(n.nspname), true)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('{settings}')`

	keepSQL = `
INSERT INTO {settings} (version) VALUES ($1)
ON CONFLICT (one) DO UPDATE SET version = greatest({settings}.version, excluded.version)`
)

// Migrate makes the schema, the tables and their indexes where they are missing. It only adds, and you
// may repeat it. Several processes may call it at once, while others use the store. It waits for other calls of
// Migrate. It gives up on any other lock after a few seconds, with an error; then repeat it. Claims wait behind it for
// as long, and behind each of several in turn, so let one process do it.
//
// If the store is complete, Migrate only looks. It makes again what somebody dropped. A newer version than this
// package's is fine, because versions only add.
//
// It needs the privilege to create tables in the schema, and to create the schema if that is missing. Programs that use
// the store need USAGE on the schema, SELECT, INSERT, UPDATE and DELETE on Table, Table_beats and Table_duplicates,
// SELECT, INSERT and UPDATE on Table_scopes, and SELECT on Table_settings.
//
// It leaves the functions of older versions of this package, which their processes call: see DropOld.
//
// Errors: a [*dedupstore.SetupError] if something else has the name.
func (s *Store) Migrate(ctx context.Context) error {
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return s.migrate(ctx, tx)
	})
	if err != nil {
		return s.failed("migrate", err)
	}
	return nil
}

// SQL returns the statements by which Migrate makes tables, for your own migration tool. The schema must
// be there. You may repeat them, but unlike Migrate they do not look first. CREATE INDEX waits for open transactions
// that wrote to the table, even if the index is there, and other writers wait behind it. Set a lock_timeout before.
func (s *Store) SQL() string {
	keep := strings.ReplaceAll(s.sql.keep, "$1", strconv.Itoa(version))
	return s.sql.schema + "\n" + keep + ";\n"
}

// Plan says what Migrate would do, and changes nothing. It looks at the version only, not for what somebody dropped.
func (s *Store) Plan(ctx context.Context) (dedupstore.Migration, error) {
	m := dedupstore.Migration{Wanted: version}
	var settings, records bool
	err := s.pool.QueryRow(ctx, s.sql.present).Scan(&settings, &records)
	if err == nil && settings {
		err = s.pool.QueryRow(ctx, s.sql.version).Scan(&m.Found)
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return dedupstore.Migration{}, s.failed("look at the schema", err)
	}
	if m.Found < version {
		m.SQL = s.SQL()
		if s.cfg.Schema != "" {
			m.SQL = `CREATE SCHEMA IF NOT EXISTS "` + s.cfg.Schema + `";` + "\n" + m.SQL
		}
	}
	return m, nil
}

// lockTimeout is how long a migration waits for others' locks on tables, while still others queue up behind it.
const lockTimeout = "3s"

func (s *Store) migrate(ctx context.Context, tx pgx.Tx) error {
	// Others may be about to make the schema, for other tables: the packages of this module that do so lock the same
	// number. It comes first because what a session believes of a schema is old until it locks something new.
	for _, lock := range []string{"oncemill schema " + s.cfg.Schema, "oncemill table " + s.cfg.located("")} {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, lock); err != nil {
			return err
		}
	}
	if s.cfg.Schema == "" {
		if _, err := tx.Exec(ctx, s.sql.stay); err != nil {
			return err
		}
	}
	var settings, records bool
	if err := tx.QueryRow(ctx, s.sql.present).Scan(&settings, &records); err != nil {
		return err
	}
	if settings {
		var found int
		err := tx.QueryRow(ctx, s.sql.version).Scan(&found)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if err == nil && found > version {
			return nil
		}
		if err == nil && found == version {
			if complete, err := s.complete(ctx, tx); err != nil || complete {
				return err
			}
		}
	} else if records {
		return s.setup(nil, "is there, and is no table of this package: name another one by Config.Table")
	}
	return s.create(ctx, tx)
}

// complete reports false if a table or an index is missing.
func (s *Store) complete(ctx context.Context, tx pgx.Tx) (complete bool, err error) {
	var tables []string
	for _, ending := range []string{"", "_beats", "_duplicates", "_scopes", "_clean", "_beats_clean"} {
		tables = append(tables, s.cfg.located(ending))
	}
	err = tx.QueryRow(ctx, `SELECT bool_and(to_regclass(t) IS NOT NULL) FROM unnest($1::text[]) AS t`,
		tables).Scan(&complete)
	return complete, err
}

func (s *Store) create(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '`+lockTimeout+`'`); err != nil {
		return err
	}
	if err := s.createSchema(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, s.sql.schema, pgx.QueryExecModeSimpleProtocol); err != nil { // several in one
		return err
	}
	_, err := tx.Exec(ctx, s.sql.keep, version)
	return err
}

// createSchema looks first: IF NOT EXISTS asks for a privilege even where the schema is there.
func (s *Store) createSchema(ctx context.Context, tx pgx.Tx) error {
	if s.cfg.Schema == "" {
		return nil
	}
	var there bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`,
		s.cfg.Schema).Scan(&there); err != nil || there {
		return err
	}
	_, err := tx.Exec(ctx, `CREATE SCHEMA "`+s.cfg.Schema+`"`)
	return err
}

// oldFunctions are those of older versions of this package: the name of the table, that of a function, and a version.
const oldFunctions = `
SELECT p.oid::regprocedure::text FROM pg_proc p
WHERE p.pronamespace = (SELECT c.relnamespace FROM pg_class c WHERE c.oid = to_regclass('{settings}'))
	AND p.proname ~ ('^' || $1::text ||
		'_(fresh|claim|settle|settle_in|extend|join|begin|decide|clean_up|change)_[0-9]+$')
ORDER BY 1`

// DropOld drops the functions that older versions of this package have made, and returns them. Call it when no process
// of such a version runs any more: it could not claim or settle. It needs the rights of their owner.
func (s *Store) DropOld(ctx context.Context) (dropped []string, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, s.sql.oldFunctions, s.cfg.Table)
		if dropped, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return err
		}
		for _, function := range dropped {
			if _, err := tx.Exec(ctx, `DROP FUNCTION `+function); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, s.failed("drop old functions", err)
	}
	return dropped, nil
}
