package pgoutbox

import (
	"cmp"
	"hash/fnv"
	"log/slog"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Config configures an Outbox. The zero value is ready to use. All programs that share an outbox must use the same
// Ordered: Migrate stores it, and a different value is an error.
type Config struct {
	// Schema is where the tables are. At most 40 ASCII letters, digits and underscores, not beginning with a digit;
	// upper and lower case differ. Empty: where the search path of the connections leads. Either all programs set it or
	// none: Notify does not reach a Listen with another Schema.
	Schema string

	// Table is the name of the table. The names of its indexes begin with it, and so do Table_lease, Table_settings,
	// and the sequence Table_places of an ordered outbox. It follows the rules of Schema. Empty: "oncemill_outbox".
	Table string

	// Ordered keeps the order of messages that share an order key: their first copies are published in the order of
	// their commits. See the package doc for what that costs.
	Ordered bool

	// SkipDead lets the messages of an order key go on when one of them is dead. False: they wait until Requeue or
	// Discard. Only for ordered outboxes.
	SkipDead bool

	// Logger gets the errors of Listen. Nil: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Table = cmp.Or(c.Table, "oncemill_outbox")
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

// longestName leaves room for the endings of the indexes within PostgreSQL's 63 bytes.
const longestName = 40

func (c Config) validate() error {
	if problem := sqlstore.NameProblem(c.Schema, longestName); c.Schema != "" && problem != "" {
		return &dedupstore.InvalidError{Package: "pgoutbox", Field: "Config.Schema", Problem: problem}
	}
	if problem := sqlstore.NameProblem(c.Table, longestName); problem != "" {
		return &dedupstore.InvalidError{Package: "pgoutbox", Field: "Config.Table", Problem: problem}
	}
	if c.SkipDead && !c.Ordered {
		return &dedupstore.InvalidError{Package: "pgoutbox", Field: "Config.SkipDead",
			Problem: "is set, but Ordered is not: dead messages hold up nobody"}
	}
	return nil
}

// hash names the outbox where a number or a short name is needed.
func (c Config) hash() uint64 {
	h := fnv.New64a()
	h.Write([]byte(c.Schema + "." + c.Table))
	return h.Sum64()
}
