package pgoutbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
)

// version is the schema's that this package needs.
const version = 2

const (
	settingsSQL = `SELECT version, ordered FROM {settings}`
	presentSQL  = `
SELECT to_regclass('{settings}') IS NOT NULL, to_regclass('{table}') IS NOT NULL,
	to_regclass('{lease}') IS NOT NULL`

	// Anything missing belongs where the tables are, even if another schema comes first in the search path.
	staySQL = `
SELECT set_config('search_path', quote_ident(n.nspname), true)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('{settings}')`

	keepSQL = `
INSERT INTO {settings} AS s (version, ordered) VALUES (%d, %v)
ON CONFLICT (one) DO UPDATE SET version = greatest(s.version, excluded.version);
`
)

// Migrate makes the schema, the tables and their indexes if they are missing. It only adds. It may be repeated, and
// called by several processes at once while others use the outbox. It waits for other migrations, and gives up on any
// other lock after a few seconds, with an error; call it again then. Writers wait behind it, and behind each of several
// in turn, so let one process do it. If the outbox is there, it only looks: run SQL to get a dropped index back. A
// newer version than this package's is fine, as versions only add.
//
// It needs the privilege to create tables in the schema, and to create the schema if that is missing. Programs that use
// the outbox need SELECT, INSERT, UPDATE and DELETE on Table and Table_lease, and SELECT on Table_settings. An ordered
// outbox also needs USAGE on the sequence Table_places.
//
// Errors: a *dedupstore.SetupError if the tables that are there do not fit the config.
func (o *Outbox) Migrate(ctx context.Context) error {
	err := pgx.BeginTxFunc(ctx, o.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return o.migrate(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("migrate outbox: %w", o.explain(err))
	}
	return nil
}

// SQL returns the statements that Migrate runs, for your own migration tool. The schema must be there. You may repeat
// them, but unlike Migrate they do not look first. CREATE INDEX waits for open transactions that wrote to the outbox,
// even if the index is there, and writers wait behind it. So set a lock_timeout.
func (o *Outbox) SQL() string { return o.sql.schema }

// Plan says what Migrate would do, and changes nothing. It looks at the version only, not for what somebody dropped.
func (o *Outbox) Plan(ctx context.Context) (dedupstore.Migration, error) {
	m := dedupstore.Migration{Wanted: version}
	found, err := o.found(ctx)
	if err != nil {
		return dedupstore.Migration{}, err
	}
	if m.Found = found.version; m.Found < version {
		m.SQL = o.SQL()
		if o.cfg.Schema != "" {
			m.SQL = `CREATE SCHEMA IF NOT EXISTS "` + o.cfg.Schema + `";` + "\n" + m.SQL
		}
	}
	return m, nil
}

// found are the settings that are there; of version 0: there are none.
func (o *Outbox) found(ctx context.Context) (found settings, err error) {
	var present, table, lease bool
	err = o.pool.QueryRow(ctx, o.sql.present).Scan(&present, &table, &lease)
	if err == nil && present {
		err = o.pool.QueryRow(ctx, o.sql.settings).Scan(&found.version, &found.ordered)
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return settings{}, fmt.Errorf("look at outbox: %w", o.explain(err))
	}
	return found, nil
}

// lockTimeout is how long a migration waits for locks on tables, while others queue up behind it.
const lockTimeout = "3s"

func (o *Outbox) migrate(ctx context.Context, tx pgx.Tx) error {
	// If this host vanishes, its locks do not outlive it for hours.
	if _, err := tx.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = '20s'`); err != nil {
		return err
	}
	if o.cfg.Schema != "" {
		// Another package of this module may be making the schema, so all of them lock the same number. The lock comes
		// first, because a session's view of a schema is old until it locks something new.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`,
			"oncemill schema "+o.cfg.Schema); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(o.cfg.hash())); err != nil {
		return err
	}
	if o.cfg.Schema == "" {
		if _, err := tx.Exec(ctx, o.sql.stay); err != nil {
			return err
		}
	}
	var settings, table, lease bool
	if err := tx.QueryRow(ctx, o.sql.present).Scan(&settings, &table, &lease); err != nil {
		return err
	}
	if !settings {
		if table {
			return unfit(o.cfg.Table, "is there, and is no outbox: name another one by Config.Table", nil)
		}
		return o.create(ctx, tx)
	}
	switch found, err := o.readSettings(ctx, pgxSession{tx}); {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return err
	case err == nil && found.ordered != o.cfg.Ordered:
		return found.mismatch(o.cfg)
	case err == nil && found.version >= version && table && lease:
		return nil
	}
	return o.create(ctx, tx)
}

func (o *Outbox) create(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '`+lockTimeout+`'`); err != nil {
		return err
	}
	if err := o.createSchema(ctx, tx); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, o.sql.schema, pgx.QueryExecModeSimpleProtocol) // several statements in one
	return err
}

// createSchema looks first: IF NOT EXISTS needs the privilege even if the schema is there.
func (o *Outbox) createSchema(ctx context.Context, tx pgx.Tx) error {
	if o.cfg.Schema == "" {
		return nil
	}
	var there bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`,
		o.cfg.Schema).Scan(&there); err != nil || there {
		return err
	}
	_, err := tx.Exec(ctx, `CREATE SCHEMA "`+o.cfg.Schema+`"`)
	return err
}

// settings are what all programs that share an outbox agree about.
type settings struct {
	version int
	ordered bool
}

func (s settings) mismatch(cfg Config) error {
	return unfit(cfg.Table, fmt.Sprintf("was made with Ordered %v, but Config.Ordered is %v; "+
		"all programs must say the same, and for another setting there must be another table",
		s.ordered, cfg.Ordered), nil)
}

func (o *Outbox) readSettings(ctx context.Context, s session) (found settings, err error) {
	rows := 0
	err = s.each(ctx, statement{query: o.sql.settings}, func(scan func(...any) error) error {
		rows++
		return scan(&found.version, &found.ordered)
	})
	if err == nil && rows == 0 {
		err = pgx.ErrNoRows
	}
	return found, err
}

// check makes sure, once for each Outbox, that the tables are there, new enough, and as the config says.
func (o *Outbox) check(ctx context.Context, s session) error {
	if o.checked.Load() {
		return nil
	}
	found, err := o.readSettings(ctx, s)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return unfit(o.cfg.Table, "is incomplete: call Migrate", nil)
	case err != nil:
		return o.explain(err)
	case found.version < version:
		problem := fmt.Sprintf("has schema version %d, want at least %d: call Migrate", found.version, version)
		return unfit(o.cfg.Table, problem, nil)
	case found.ordered != o.cfg.Ordered:
		return found.mismatch(o.cfg)
	}
	o.checked.Store(true)
	return nil
}
