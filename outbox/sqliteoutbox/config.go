package sqliteoutbox

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/oncemill/oncemill/outbox"
)

// Config configures an Outbox. The zero value is ready to use.
type Config struct {
	// Table is the name of the table, and the beginning of the names of its indexes. At most 48 ASCII letters, digits
	// and underscores; it does not begin with a digit, or with "sqlite_". Empty: "oncemill_outbox".
	Table string

	// Baggage names the members of OpenTelemetry's baggage that travel with messages, if the propagator writes baggage.
	// What is in a row stays there, and whoever reads the message gets it. Empty: none.
	Baggage []string
}

func (c Config) withDefaults() Config {
	if c.Table == "" {
		c.Table = "oncemill_outbox"
	}
	return c
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,47}$`)

func (c Config) validate() error {
	if !tableName.MatchString(c.Table) || strings.HasPrefix(strings.ToLower(c.Table), "sqlite_") {
		return &outbox.InvalidError{
			Field: "Config.Table",
			Problem: fmt.Sprintf("is %q, want up to 48 ASCII letters, digits and underscores, "+
				`not beginning with a digit or "sqlite_"`, c.Table),
		}
	}
	return nil
}
