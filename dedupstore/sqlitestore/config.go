package sqlitestore

import (
	"cmp"
	"log/slog"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// Table is the name of the table, and the start of the names of its index and of the tables beside it. At most 40
	// ASCII letters, digits and underscores; it does not start with a digit or with "sqlite_". Empty: "oncemill_dedup".
	// Another table is another set of records: what was done under the old one runs again.
	Table string

	// Logger gets the log lines of RunCleaning and inboxes. Nil: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Table, c.Logger = cmp.Or(c.Table, "oncemill_dedup"), cmp.Or(c.Logger, slog.Default())
	return c
}

func (c Config) validate() error {
	if strings.HasPrefix(strings.ToLower(c.Table), "sqlite_") {
		return &dedupstore.InvalidError{
			Package: "sqlitestore", Field: "Config.Table", Problem: `begins with "sqlite_", which is SQLite's own`,
		}
	}
	return sqlstore.ValidateName("sqlitestore", "Config.Table", c.Table)
}
