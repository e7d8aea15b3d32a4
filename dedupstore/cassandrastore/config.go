package cassandrastore

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// Keyspace is the keyspace of the table. Migrate does not make it. Empty: "oncemill".
	Keyspace string

	// Table is the table's name. Empty: "dedup".
	Table string

	// Local lets the session's datacenter decide alone: LOCAL_SERIAL and LOCAL_QUORUM instead of SERIAL and QUORUM.
	// Then all claims of a key have to be made in one datacenter, and what it has confirmed reaches the others later.
	Local bool

	// MaxSkew is how far the clocks of hosts that use the table may be from the true time, at least a millisecond and
	// at most a minute. All of them need the same value. Leases live twice as long longer than asked for, so that no
	// clock within the bound ends one early. Claims are refused while this host's clock and that of a node of Cassandra
	// are further apart. Zero: 500 ms.
	MaxSkew time.Duration
}

func (c Config) withDefaults() Config {
	c.Keyspace, c.Table = cmp.Or(c.Keyspace, "oncemill"), cmp.Or(c.Table, "dedup")
	c.MaxSkew = cmp.Or(c.MaxSkew, 500*time.Millisecond)
	return c
}

func (c Config) validate(session *gocql.Session) error {
	field, problem := "", ""
	switch {
	case session == nil:
		field, problem = "session", "is nil"
	case !identifier(c.Keyspace):
		field, problem = "Config.Keyspace", fmt.Sprintf("is %q, want %s", c.Keyspace, identifiers)
	case !identifier(c.Table):
		field, problem = "Config.Table", fmt.Sprintf("is %q, want %s", c.Table, identifiers)
	case c.MaxSkew < time.Millisecond || c.MaxSkew > time.Minute:
		field, problem = "Config.MaxSkew", fmt.Sprintf("is %v, want 1ms to 1m", c.MaxSkew)
	default:
		return nil
	}
	return &dedupstore.InvalidError{Package: "cassandrastore", Field: field, Problem: problem}
}

const identifiers = `1 to 48 letters, digits and "_"`

func identifier(s string) bool {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
	return s != "" && len(s) <= 48 && strings.Trim(s, plain) == ""
}

// located is the table as statements name it.
func (c Config) located() string { return `"` + c.Keyspace + `"."` + c.Table + `"` }
