package pgwal

import (
	"cmp"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

// Config configures a Relay. Only Pool is required. Contradictions are errors of New that name the field.
type Config struct {
	// Pool leads to the database. It belongs to the caller, and must reach the primary itself, not through a pooler.
	// The connection that reads the log is made as the pool makes its connections, but does not count as one of them:
	// its user needs the attribute REPLICATION. Required.
	Pool *pgxpool.Pool

	// Schema is where pgoutbox's tables are. Empty: where the search path of the connections leads.
	Schema string

	// Table is the name of pgoutbox's table. Empty: "oncemill_outbox".
	Table string

	// Slot is the name of the replication slot, and of the publication. A server has one slot of a name for all of its
	// databases. All relays that take over from each other name the same one, and no others: a relay confirms what it
	// does not publish, too. Up to 63 lower case letters, digits and underscores. Empty: made of Schema and Table.
	// Tables that only the search path tells apart get the same name: Setup and Run refuse the second one.
	Slot string

	// BatchSize is the most messages that are published together. Zero: 500.
	BatchSize int

	// MaxInFlight is how many calls of the publisher run at once. Calls for messages that got no answer before come on
	// top, and as many again for topics of which a message got none.
	//
	// One keeps the order of commits among messages that are not retried, but for those of a key: the second of a key
	// waits for the answer to the first, and others overtake it. Then a topic that hangs and goes on getting messages
	// slows all keys down: each gets one message out in a PublishTimeout. Zero: 4.
	MaxInFlight int

	// PublishTimeout is how long one call of the publisher may take. What is not acknowledged by then is unknown, and
	// each of those messages then gets a call of its own, ever more slowly, up to 32 at once. Messages to a topic that
	// gave no answer in the last ten minutes, or two if it answers again, get calls of their own too, unless
	// MaxInFlight is 1.
	//
	// A statement may take as long, but at most 10 s. So may what is being published when the context of Run ends.
	// Zero: 30 s.
	PublishTimeout time.Duration

	// MaxAttempts is how often a message may be refused before it is dead. Attempts without an answer do not count.
	// Zero: 20.
	MaxAttempts int

	// Backoff is how long a message waits after an attempt that was not acknowledged. A relay looks every 100 ms
	// whether that is over. Zero: 1 s to 1 min, or to Min if that is longer.
	Backoff oncemill.Backoff

	// Retention is how long published rows are kept in the table. Zero: 24 h. outbox.DeleteAtOnce: not at all.
	Retention time.Duration

	// Telemetry says where traces and metrics go. The outbox has the name of Table there, behind Schema if that is set.
	// Zero: OpenTelemetry's global providers and propagator.
	Telemetry oncemill.Telemetry

	// Logger gets what operators must know: IDs, topics and errors, never keys, headers or payloads. Nil:
	// slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Table = cmp.Or(c.Table, "oncemill_outbox")
	name := strings.TrimPrefix(strings.ToLower(c.Schema+"_"+c.Table), "_")
	c.Slot = cmp.Or(c.Slot, noLetters.ReplaceAllString(name, "_")) // may be too long: validate says so
	c.BatchSize = cmp.Or(c.BatchSize, 500)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 4)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 30*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 20)
	c.Backoff.Min = cmp.Or(c.Backoff.Min, time.Second)
	c.Backoff.Max = cmp.Or(c.Backoff.Max, max(time.Minute, c.Backoff.Min))
	c.Retention = cmp.Or(c.Retention, 24*time.Hour)
	c.Logger = telemetry.Logger(cmp.Or(c.Logger, slog.Default()))
	return c
}

const (
	maxBatch    = 10_000
	maxInFlight = 64
	longest     = 365 * 24 * time.Hour // keeps sums of times far from overflow
)

var (
	noLetters = regexp.MustCompile(`[^a-z0-9]+`)
	slotName  = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
)

// outbox is the config of the table.
func (c Config) outbox() pgoutbox.Config {
	return pgoutbox.Config{Schema: c.Schema, Table: c.Table, Logger: c.Logger}
}

// validate checks a config after its defaults were filled in. Schema and Table are for pgoutbox to check.
func (c Config) validate() error {
	invalid := func(field, format string, args ...any) error {
		return &dedupstore.InvalidError{Package: "pgwal", Field: "Config." + field,
			Problem: fmt.Sprintf(format, args...)}
	}
	switch {
	case c.Pool == nil:
		return invalid("Pool", "is nil")
	case !slotName.MatchString(c.Slot):
		return invalid("Slot", "is %q, want 1 to 63 lower case letters, digits and underscores", c.Slot)
	case c.BatchSize < 1 || c.BatchSize > maxBatch:
		return invalid("BatchSize", "is %d, want 1 to %d", c.BatchSize, maxBatch)
	case c.MaxInFlight < 1 || c.MaxInFlight > maxInFlight:
		return invalid("MaxInFlight", "is %d, want 1 to %d", c.MaxInFlight, maxInFlight)
	case c.PublishTimeout < time.Millisecond || c.PublishTimeout > longest:
		return invalid("PublishTimeout", "is %v, want 1ms to %v", c.PublishTimeout, longest)
	case c.MaxAttempts < 1:
		return invalid("MaxAttempts", "is %d, want at least 1", c.MaxAttempts)
	case c.Backoff.Min < time.Millisecond:
		return invalid("Backoff.Min", "is %v, want at least 1ms", c.Backoff.Min)
	case c.Backoff.Max < c.Backoff.Min || c.Backoff.Max > longest:
		return invalid("Backoff.Max", "is %v, want Min (%v) to %v", c.Backoff.Max, c.Backoff.Min, longest)
	case c.Retention != outbox.DeleteAtOnce && (c.Retention < time.Millisecond || c.Retention > longest):
		return invalid("Retention", "is %v, want 1ms to %v, or DeleteAtOnce", c.Retention, longest)
	}
	return nil
}

// limits are what a relay keeps to and no config says. Tests have others.
type limits struct {
	maxPending      int           // messages in memory: reading stops while there are as many
	maxPendingBytes int           // of their payloads, likewise
	pollInterval    time.Duration // between two looks at the table
	watchInterval   time.Duration // between two looks at the slot
	storeTimeout    time.Duration // of a statement
	stopTimeout     time.Duration // of what is being published, once Run is to end
	warnWAL         int64         // bytes of log that the slot may retain before the relay warns
}

func (c Config) limits() limits {
	return limits{
		maxPending: 10_000, maxPendingBytes: 64 << 20,
		pollInterval: time.Second, watchInterval: 10 * time.Second,
		storeTimeout: min(10*time.Second, c.PublishTimeout), stopTimeout: min(10*time.Second, c.PublishTimeout),
		warnWAL: 1 << 30,
	}
}
