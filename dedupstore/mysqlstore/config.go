package mysqlstore

import (
	"cmp"
	"log/slog"

	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// Table is the name of the table of records. Beside it are Table_scopes and Table_version. At most 40 ASCII
	// letters, digits and underscores, not beginning with a digit. Empty: "oncemill_dedup". Another table is another
	// set of records: what was done under the old one runs again.
	Table string

	// Logger gets the log lines of RunCleaning and inboxes. Nil: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Table, c.Logger = cmp.Or(c.Table, "oncemill_dedup"), cmp.Or(c.Logger, slog.Default())
	return c
}

func (c Config) validate() error { return sqlstore.ValidateName("mysqlstore", "Config.Table", c.Table) }
