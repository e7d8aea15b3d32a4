package pgoutbox

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"regexp"

	"github.com/oncemill/oncemill/outbox"
)

// Config configures an Outbox. The zero value is ready to use. All programs that share an outbox give it the same
// Ordered, Partitions and Debezium: Migrate stores them, and later differences are errors.
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

	// Partitions is how many locks the keys of an ordered outbox share, 1 to 4096: transactions that write keys of the
	// same one wait for each other's end. Zero: 64.
	Partitions int

	// SkipDead lets the messages of a key go on when one of them is dead, so refused for the last time. False: they
	// wait until somebody uses Requeue or Discard. Only for ordered outboxes.
	SkipDead bool

	// Debezium names the columns as Debezium's outbox event router expects them, so that it can take over from the
	// relay. See the package doc.
	Debezium bool

	// Baggage names the members of OpenTelemetry's baggage that travel with messages, if the propagator writes baggage.
	// What is in a row stays there, and whoever reads the message gets it. Empty: none.
	Baggage []string

	// Logger gets what Listen has to say. Nil: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Table == "" {
		c.Table = "oncemill_outbox"
	}
	if c.Partitions == 0 {
		c.Partitions = 64
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

const maxPartitions = 4096

// Names have room for the endings of the indexes within PostgreSQL's 63 bytes.
var simpleName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)

func (c Config) validate() error {
	const want = "want up to 40 ASCII letters, digits and underscores, not beginning with a digit"
	switch {
	case c.Schema != "" && !simpleName.MatchString(c.Schema):
		return &outbox.InvalidError{Field: "Config.Schema", Problem: fmt.Sprintf("is %q, %s", c.Schema, want)}
	case !simpleName.MatchString(c.Table):
		return &outbox.InvalidError{Field: "Config.Table", Problem: fmt.Sprintf("is %q, %s", c.Table, want)}
	case c.Partitions < 1 || c.Partitions > maxPartitions:
		return &outbox.InvalidError{Field: "Config.Partitions", Problem: fmt.Sprintf("is %d, want 1 to %d",
			c.Partitions, maxPartitions)}
	case c.SkipDead && !c.Ordered:
		return &outbox.InvalidError{Field: "Config.SkipDead",
			Problem: "is set, but Ordered is not: dead messages hold up nobody"}
	}
	return nil
}

// name is what metrics call the outbox.
func (c Config) name() string {
	if c.Schema != "" {
		return c.Schema + "." + c.Table
	}
	return c.Table
}

// hash names the outbox where a number or a short name is needed.
func (c Config) hash() uint64 {
	h := fnv.New64a()
	h.Write([]byte(c.Schema + "." + c.Table))
	return h.Sum64()
}
