package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/rowsecurity"
)

// leastServer is the oldest server_version_num that the store works with.
const leastServer = 140000

// Check implements [dedupstore.Checker]. Errors: a [*dedupstore.SetupError] if the server, the tables or the rights of
// the database user do not fit. A newer schema is fine: versions only add.
func (s *Store) Check(ctx context.Context) (dedupstore.Report, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return dedupstore.Report{}, s.failed("check", err)
	}
	defer conn.Release()
	found, err := s.server(ctx, conn.Conn())
	if err == nil {
		err = s.checkSchema(ctx, conn.Conn())
	}
	report := found.report()
	if err == nil {
		report.Warnings, err = s.checkScopes(ctx, conn.Conn(), report.Warnings)
	}
	if err != nil {
		return dedupstore.Report{}, s.failed("check", err)
	}
	return report, nil
}

// A server is what the store wants to know of one.
type server struct {
	version                          string
	number                           int
	reads                            bool
	fsync, pages, commits, isolation string
	statement, idle, transaction     int      // ms; 0: no limit
	locks                            int      // that all sessions together may have
	unlogged                         []string // tables that a crash of the server empties
}

const serverSQL = `
SELECT current_setting('server_version'), current_setting('server_version_num')::integer,
	pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean,
	current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
	current_setting('default_transaction_isolation'),
	(SELECT setting::integer FROM pg_settings WHERE name = 'statement_timeout'),
	(SELECT setting::integer FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'),
	coalesce((SELECT setting::integer FROM pg_settings WHERE name = 'transaction_timeout'), 0), -- since PostgreSQL 17
	current_setting('max_locks_per_transaction')::integer * current_setting('max_connections')::integer,
	ARRAY(SELECT t.name FROM unnest($1::text[]) WITH ORDINALITY AS t (name, n)
		JOIN pg_class c ON c.oid = to_regclass(t.name) WHERE c.relpersistence <> 'p' ORDER BY t.n)`

func (s *Store) server(ctx context.Context, conn *pgx.Conn) (f server, err error) {
	tables := []string{s.cfg.located(""), s.cfg.located("_beats")}
	err = conn.QueryRow(ctx, serverSQL, tables).Scan(&f.version, &f.number, &f.reads, &f.fsync, &f.pages, &f.commits,
		&f.isolation, &f.statement, &f.idle, &f.transaction, &f.locks, &f.unlogged)
	switch {
	case err != nil:
		return f, err
	case f.number < leastServer:
		return f, setTo("server_version", f.version, "use PostgreSQL 14 or later")
	case f.reads:
		return f, setTo("transaction_read_only", "on",
			"connect to the primary, with default_transaction_read_only off")
	}
	return f, nil
}

// setTo says that the server has a setting that does not do.
func setTo(setting, value, advice string) error {
	return unfit(setting, fmt.Sprintf("is %q: %s", value, advice), nil)
}

func (f server) report() dedupstore.Report {
	r := dedupstore.Report{
		Store: "postgresql", Version: f.version,
		Durability: "what is committed survives a crash of the server; a failover forgets what its replica had not " +
			"received (synchronous_commit is " + f.commits + ")",
	}
	warn := func(when bool, text string) {
		if when {
			r.Warnings = append(r.Warnings, text)
		}
	}
	loses := func(when bool, text string) {
		if warn(when, text); when {
			r.Losses = append(r.Losses, text)
		}
	}
	if len(f.unlogged) > 0 {
		r.Durability = "a crash of the server or a failover empties tables that are UNLOGGED: " +
			strings.Join(f.unlogged, ", ")
	}
	for _, table := range f.unlogged {
		loses(true, table+" is UNLOGGED: a crash of the server empties it, and what was done runs again; ALTER TABLE "+
			"… SET LOGGED")
	}
	if f.fsync == "off" {
		r.Durability = "a crash of the operating system may destroy the database: fsync is off"
	}
	loses(f.fsync == "off", "fsync is off: a crash of the operating system may destroy the database; set it to on")
	loses(f.pages == "off", "full_page_writes is off: a crash of the operating system may destroy pages; set it to on")
	warn(f.commits == "off", "synchronous_commit is off: the store switches it on for its own commits and for the "+
		"inbox's, not for other transactions of the handlers")
	warn(f.isolation != "read committed", fmt.Sprintf("default_transaction_isolation is %q: claims are refused and "+
		"repeated where READ COMMITTED would let them pass; set it for the business by Config.Isolation instead",
		f.isolation))
	warn(f.statement > 0 && f.statement < 1000,
		fmt.Sprintf("statement_timeout is %v: claims may fail on a busy server; set it to some seconds",
			time.Duration(f.statement)*time.Millisecond))
	warn(f.idle > 0 && f.idle < 10_000, fmt.Sprintf("idle_in_transaction_session_timeout is %v: a handler of an "+
		"inbox that waits for longer loses its transaction", time.Duration(f.idle)*time.Millisecond))
	warn(f.transaction > 0 && f.transaction < 10_000,
		fmt.Sprintf("transaction_timeout is %v: a handler of an inbox that takes longer loses its transaction",
			time.Duration(f.transaction)*time.Millisecond))
	warn(f.locks < leastLocks, fmt.Sprintf("max_locks_per_transaction is too low: all sessions together have room for "+
		"%d locks, and a batch of claims takes up to 256; 64 is the default", f.locks))
	return r
}

// leastLocks is room for the batches of some processes beside what else the server does: two thirds of what it has by
// default.
const leastLocks = 4096

// checkSchema looks for tables, and whether the database user may use them.
func (s *Store) checkSchema(ctx context.Context, conn *pgx.Conn) error {
	var settings, records bool
	if err := conn.QueryRow(ctx, s.sql.present).Scan(&settings, &records); err != nil {
		return err
	}
	if !settings || !records {
		return s.setup(nil, "is missing where the connection looks for it: call Migrate, "+
			"or grant the user USAGE on its schema")
	}
	var tables []string
	for _, ending := range []string{"_settings", "", "_beats", "_duplicates"} {
		tables = append(tables, s.cfg.located(ending))
	}
	rows, _ := conn.Query(ctx, missingSQL, tables)
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return err
	case len(missing) > 0:
		return s.setup(nil, "may not be used by the database user: GRANT %s", strings.Join(missing, "; GRANT "))
	}
	hidden, err := rowsecurity.Hidden(ctx, conn, tables...)
	switch {
	case err != nil:
		return err
	case hidden != "":
		return unfit("table "+hidden, rowsecurity.Advice, nil)
	}
	var found int
	err = conn.QueryRow(ctx, s.sql.version).Scan(&found)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return s.setup(nil, "is incomplete: call Migrate")
	case err != nil:
		return err
	case found < version:
		return s.setup(nil, "has schema version %d, want at least %d: call Migrate", found, version)
	}
	return nil
}

// missingSQL returns the privileges that have to be granted.
const missingSQL = `
SELECT n.privileges || ' ON ' || n.name || ' TO "' || current_user || '"'
FROM (SELECT name, CASE n WHEN 1 THEN 'SELECT' ELSE 'SELECT, INSERT, UPDATE, DELETE' END AS privileges
	FROM unnest($1::text[]) WITH ORDINALITY AS t (name, n)) AS n
WHERE NOT (SELECT bool_and(has_table_privilege(n.name, p)) FROM regexp_split_to_table(n.privileges, ', ') AS p)`
