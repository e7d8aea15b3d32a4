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

	// Ordered keeps the order of each key: the first copies of its messages are published in the order in which their
	// transactions committed, and within one transaction in the order of writing. A further copy may come at any later
	// time. It costs this:
	//
	//   - A transaction that writes a key waits for all transactions that wrote a key of the same partition. One call
	//     of Publish sorts its keys. Two transactions that write the same keys by several calls, in different orders,
	//     can deadlock, and PostgreSQL ends one with 40P01. Write the keys by one call, or repeat the transaction.
	//   - A message that is refused, gets no answer or is delayed by NotBefore holds up the later ones of its key only.
	//     A dead one does too, until Requeue or Discard, unless SkipDead is set.
	//   - Each look reads all delayed and dead rows that have a key, and those that wait behind them or behind leased
	//     ones. Half a million take a second. If it takes longer than 10 s, as with some millions, new messages of all
	//     keys stand still.
	//   - One message of a key is on its way at a time, as far as its relay knows.
	//   - A dead message may still arrive behind those that Discard or SkipDead let pass, if an attempt of it got no
	//     answer.
	//   - Requeue and Replay publish at a later time. They do not put a message back into its old place.
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
