package mysqloutbox

import (
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Config configures an Outbox. The zero value is ready to use. All programs that share an outbox give it the same
// Ordered: Migrate stores it, and a later difference is an error.
type Config struct {
	// Table is the name of the table. Beside it is Table_settings. At most 40 ASCII letters, digits and
	// underscores, not beginning with a digit. Empty: "oncemill_outbox".
	Table string

	// Ordered keeps the order of each key: the first copies of its messages are published in the order in which their
	// transactions committed, and within one transaction in the order of writing. A further copy may come at any later
	// time. It costs this:
	//
	//   - A transaction that writes a key waits for all transactions that wrote a key of the same partition; there are
	//     64. Two transactions that write the same keys by several calls of Publish, in different orders, can deadlock,
	//     and MySQL ends one with error 1213. Write the keys by one call, or repeat the transaction.
	//   - A message that is refused, gets no answer or is delayed by NotBefore holds up the later ones of its key only.
	//     A dead one does too, until Requeue or Discard, unless SkipDead is set.
	//   - Relays choose their rows one after the other, and each look passes over all delayed and dead rows, and over
	//     those behind dead or leased ones.
	//   - Requeue and Replay publish at a later time. They do not put a message back into its old place.
	//   - All writers use the same server: numbers that several servers of a cluster allocate have no order.
	Ordered bool

	// SkipDead lets the messages of a key go on when one of them is dead, so refused for the last time. False: they
	// wait until somebody uses Requeue or Discard. Only for ordered outboxes.
	SkipDead bool
}

func (c Config) validate() error {
	if problem := sqlstore.NameProblem(c.Table, 40); problem != "" {
		return &dedupstore.InvalidError{Package: "mysqloutbox", Field: "Config.Table", Problem: problem}
	}
	if c.SkipDead && !c.Ordered {
		return &dedupstore.InvalidError{Package: "mysqloutbox", Field: "Config.SkipDead",
			Problem: "is set, but Ordered is not: dead messages hold up nobody"}
	}
	return nil
}
