package pgstore

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// Schema is where the tables are. At most 40 ASCII letters, digits and underscores, not beginning
	// with a digit; upper and lower case differ. Empty: where the search path of the connections leads.
	Schema string

	// Table is the name of the table of records, and the start of the names of its indexes. Beside it are
	// Table_beats, Table_duplicates, Table_scopes and Table_settings. It has the same form as Schema. Empty:
	// "oncemill_dedup". Another table is another set of records: what was done under the old one runs again.
	Table string

	// Isolation is the isolation level of the transactions that an inbox begins. Empty: the database's default. Under
	// [pgx.RepeatableRead] and [pgx.Serializable] the handler runs again, in a new transaction, when PostgreSQL refuses
	// one because of others. A handler cannot choose it by SET TRANSACTION, which fails when it runs again.
	Isolation pgx.TxIsoLevel

	// Logger gets the log lines of RunCleaning and inboxes. Nil: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Table = cmp.Or(c.Table, "oncemill_dedup")
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

func (c Config) validate() error {
	if c.Schema != "" {
		if err := sqlstore.ValidateName("pgstore", "Config.Schema", c.Schema); err != nil {
			return err
		}
	}
	if err := sqlstore.ValidateName("pgstore", "Config.Table", c.Table); err != nil {
		return err
	}
	if _, known := sqlLevels[c.Isolation]; known {
		return nil
	}
	return &dedupstore.InvalidError{
		Package: "pgstore", Field: "Config.Isolation",
		Problem: fmt.Sprintf("is %q, want %q, %q or %q",
			c.Isolation, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable),
	}
}
