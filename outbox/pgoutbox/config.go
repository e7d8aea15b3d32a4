package pgoutbox

import (
	"cmp"
	"hash/fnv"
	"log/slog"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Config configures an Outbox. The zero value is ready to use. All programs that share an outbox give it the same
// Ordered: Migrate stores it, and a later difference is an error.
type Config struct {
	// Schema is where the tables are. At most 40 ASCII letters, digits and underscores, not beginning with a digit;
	// upper and lower case differ. Empty: where the search path of the connections leads. All programs name it, or none
	// does: Notify does not reach a Listen that is configured otherwise.
	Schema string

	// Table is the name of the table, and the beginning of the names of its indexes, of two small tables beside it,
	// Table_lease and Table_settings, and of the sequence Table_places of an ordered outbox. As Schema. Empty:
	// "oncemill_outbox".
	Table string

	// Ordered keeps the order of messages that have a key: for each key, the first copies are published in the order in
	// which their transactions committed. See the package doc for what that costs.
	Ordered bool

	// SkipDead lets the messages of a key go on when one of them is dead, so refused for the last time. False: they
	// wait until somebody uses Requeue or Discard. Only for ordered outboxes.
	SkipDead bool

	// Logger gets what Listen has to say. Nil: slog.Default().
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
