package pgstore

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// Schema is where the tables and functions are. At most 40 ASCII letters, digits and underscores, not beginning
	// with a digit; upper and lower case differ. Empty: where the search path of the connections leads.
	Schema string

	// Table is the name of the table of records, and the beginning of the names of its indexes and functions, and of
	// two small tables beside it, Table_beats and Table_settings. As Schema. Empty: "oncemill_dedup". Another table is
	// another set of records: what was done under the old one runs again.
	Table string

	// Isolation is the isolation level of the transactions that an inbox begins. Empty: what the database has by
	// default. Under [pgx.RepeatableRead] and [pgx.Serializable] the handler runs again, in a new transaction, when
	// PostgreSQL refuses one because of others. A handler cannot choose it by SET TRANSACTION, which fails when it runs
	// again.
	Isolation pgx.TxIsoLevel

	// CleanInterval is how often RunCleaning looks for expired records. Zero: a minute. At least a millisecond.
	CleanInterval time.Duration

	// Logger gets what RunCleaning, and an inbox whose transaction a handler ended by itself, have to say. Nil:
	// slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Table == "" {
		c.Table = "oncemill_dedup"
	}
	if c.CleanInterval == 0 {
		c.CleanInterval = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	invalid := func(field, problem string, args ...any) error {
		return &dedupstore.InvalidError{Field: "Config." + field, Problem: fmt.Sprintf(problem, args...)}
	}
	if c.Schema != "" {
		if err := sqlstore.ValidateName("Config.Schema", c.Schema); err != nil {
			return err
		}
	}
	if err := sqlstore.ValidateName("Config.Table", c.Table); err != nil {
		return err
	}
	if c.CleanInterval < time.Millisecond {
		return invalid("CleanInterval", "is %v, want at least 1ms", c.CleanInterval)
	}
	switch c.Isolation {
	case "", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
		return nil
	}
	return invalid("Isolation", "is %q, want %q, %q or %q",
		c.Isolation, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable)
}
