package pgwal

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Config configures a Relay. Only Pool is required, and Dead if Prefix is set. Contradictions are errors of New that name
// the field.
type Config struct {
	// Pool leads to the database. It belongs to the caller, and must reach the primary itself, not through a pooler. The
	// connection that reads the log is made as the pool makes its connections, but does not count as one of them: its user
	// needs the attribute REPLICATION. Required.
	Pool *pgxpool.Pool

	// Prefix makes the relay publish what an Emitter with this prefix wrote, instead of rows of the table. At most 60
	// ASCII letters, digits and the signs _ . : / -. Empty: rows of the table.
	Prefix string

	// Dead is where messages of an Emitter go that were refused for the last time: an outbox of package pgoutbox in the
	// same database, whose schema and table Schema and Table name. Required with Prefix, and only then allowed.
	Dead Dead

	// Schema is where pgoutbox's tables are. Empty: where the search path of the connections leads.
	Schema string

	// Table is the name of pgoutbox's table. Empty: "oncemill_outbox".
	Table string

	// Slot is the name of the replication slot, of which a server has one for all of its databases: up to 63 lower case
	// letters, digits and underscores. All relays that take over from each other name the same one, and no others:
	// what a relay does not publish it confirms all the same. Empty: made of Schema and Table, and of Prefix if that is set;
	// that is one name for tables that only the search path tells apart, and for prefixes that differ only in signs or case,
	// so that Setup and Run refuse the second one.
	Slot string

	// Publication is the name of the publication, which is part of the database. As Slot. Empty: as Slot.
	Publication string

	// BatchSize is the most messages that are published together. Zero: 500.
	BatchSize int

	// MaxInFlight is how many calls of the publisher there are at once, beside those for messages that got no answer
	// before, and as many for topics of which one got none. One keeps the order of commits among all messages that are not
	// retried; then a topic that hangs and goes on getting messages lets each key of the others have one in each PublishTimeout. Zero: 4.
	MaxInFlight int

	// MaxPending is how many messages are in memory, at least BatchSize: reading stops while there are as many. Up to
	// 2,000 more are on their way there. Zero: 10,000, or BatchSize if that is more.
	MaxPending int

	// MaxPendingBytes is how many bytes of payloads are in memory before reading stops. Zero: 64 MiB.
	MaxPendingBytes int

	// PollInterval is the pause between two looks at the table for rows that the log does not show: those that are due
	// again after a delay, and those that were requeued or replayed. Every tenth look is for rows that are older than the
	// slot, too. Looks that take long are made more rarely, and after an error for half as many rows. Only for tables. Zero: 1 s.
	PollInterval time.Duration

	// PublishTimeout is how long one call of the publisher may take. What is not acknowledged by then is unknown.
	// Zero: 30 s.
	PublishTimeout time.Duration

	// StoreTimeout is how long one statement may take. Zero: 10 s.
	StoreTimeout time.Duration

	// StopTimeout is how long Run, once its context ended, waits for what is being published. Recording the results may
	// take StoreTimeout more. Zero: 10 s.
	StopTimeout time.Duration

	// MaxAttempts is how often a message may be refused before it is dead. Attempts without an answer do not count.
	// Zero: 20.
	MaxAttempts int

	// RetryMin is how long a message waits after its first attempt that was not acknowledged. The wait doubles with each
	// further one up to RetryMax, and is shortened at random by up to a fifth. Zero: 1 s.
	RetryMin time.Duration

	// RetryMax is the longest wait. Zero: 1 min, or RetryMin if that is longer.
	RetryMax time.Duration

	// Retention is how long published rows are kept in the table. Zero: 24 h. outbox.DeleteAtOnce: not at all.
	Retention time.Duration

	// WarnWAL is how many bytes of log the slot may retain before the relay warns. It warns at half of
	// max_slot_wal_keep_size, if that is less. Zero: 1 GiB.
	WarnWAL int64

	// Name names the outbox in metrics. Outboxes of one process that have the same name show the highest of their numbers of
	// rows. Empty: Table, behind Schema if that is set; or Prefix.
	Name string

	// Telemetry says where traces and metrics go. Zero: OpenTelemetry's global providers and propagator.
	Telemetry oncemill.Telemetry

	// Logger gets what operators must know: IDs, topics and errors, never keys, headers or payloads. Nil:
	// slog.Default().
	Logger *slog.Logger
}

// Dead keeps messages that were refused for the last time. A *pgoutbox.Outbox is one.
type Dead interface {
	// In returns a publisher that writes rows in a transaction.
	In(tx pgx.Tx) producer.Publisher

	// Migrate makes the tables where they are missing.
	Migrate(ctx context.Context) error
}

func (c Config) withDefaults() Config {
	set(&c.Table, "oncemill_outbox")
	set(&c.Slot, c.defaultName())
	set(&c.Publication, c.Slot)
	set(&c.BatchSize, 500)
	set(&c.MaxInFlight, 4)
	set(&c.MaxPending, max(10_000, c.BatchSize))
	set(&c.MaxPendingBytes, 64<<20)
	set(&c.PollInterval, time.Second)
	set(&c.PublishTimeout, 30*time.Second)
	set(&c.StoreTimeout, 10*time.Second)
	set(&c.StopTimeout, 10*time.Second)
	set(&c.MaxAttempts, 20)
	set(&c.RetryMin, time.Second)
	set(&c.RetryMax, max(time.Minute, c.RetryMin))
	set(&c.Retention, 24*time.Hour)
	set(&c.WarnWAL, 1<<30)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = telemetry.Logger(c.Logger)
	return c
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

var noLetters = regexp.MustCompile(`[^a-z0-9]+`)

// defaultName may be too long: then validate says so.
func (c Config) defaultName() string {
	name := c.Table
	if c.Schema != "" {
		name = c.Schema + "_" + name
	}
	if c.Prefix != "" {
		name += "_" + c.Prefix
	}
	return noLetters.ReplaceAllString(strings.ToLower(name), "_")
}

// messages says whether the relay publishes what an Emitter wrote, instead of rows.
func (c Config) messages() bool { return c.Prefix != "" }

const longest = 365 * 24 * time.Hour // keeps sums of times far from overflow

var (
	tableName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)
	slotName   = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	prefixName = regexp.MustCompile(`^[A-Za-z0-9_.:/-]{1,60}$`)
)

// validate checks a config after its defaults were filled in.
func (c Config) validate() error {
	if c.Pool == nil {
		return &outbox.InvalidError{Field: "Config.Pool", Problem: "is nil"}
	}
	if err := c.validateNames(); err != nil {
		return err
	}
	if err := c.validateNumbers(); err != nil {
		return err
	}
	for _, d := range [...]struct {
		field string
		value time.Duration
	}{
		{"Config.PollInterval", c.PollInterval},
		{"Config.PublishTimeout", c.PublishTimeout},
		{"Config.StoreTimeout", c.StoreTimeout},
		{"Config.StopTimeout", c.StopTimeout},
		{"Config.RetryMin", c.RetryMin},
		{"Config.RetryMax", c.RetryMax},
	} {
		if d.value < time.Millisecond || d.value > longest {
			return &outbox.InvalidError{Field: d.field, Problem: fmt.Sprintf("is %v, want 1ms to %v", d.value, longest)}
		}
	}
	switch {
	case c.RetryMax < c.RetryMin:
		return &outbox.InvalidError{Field: "Config.RetryMax", Problem: fmt.Sprintf("is %v, want at least RetryMin (%v)", c.RetryMax, c.RetryMin)}
	case c.Retention != outbox.DeleteAtOnce && (c.Retention < time.Millisecond || c.Retention > longest):
		return &outbox.InvalidError{Field: "Config.Retention", Problem: fmt.Sprintf("is %v, want 1ms to %v, or DeleteAtOnce", c.Retention, longest)}
	}
	return nil
}

func (c Config) validateNames() error {
	const (
		likeTable  = "want up to 40 ASCII letters, digits and underscores, not beginning with a digit"
		likeSlot   = "want 1 to 63 lower case letters, digits and underscores"
		likePrefix = "want 1 to 60 ASCII letters, digits and the signs _ . : / -"
	)
	for _, n := range [...]struct {
		field, value, want string
		like               *regexp.Regexp
		optional           bool
	}{
		{"Config.Prefix", c.Prefix, likePrefix, prefixName, true},
		{"Config.Schema", c.Schema, likeTable, tableName, true},
		{"Config.Table", c.Table, likeTable, tableName, false},
		{"Config.Slot", c.Slot, likeSlot, slotName, false},
		{"Config.Publication", c.Publication, likeSlot, slotName, false},
	} {
		if !n.like.MatchString(n.value) && (!n.optional || n.value != "") {
			return &outbox.InvalidError{Field: n.field, Problem: fmt.Sprintf("is %q, %s", n.value, n.want)}
		}
	}
	switch {
	case c.messages() && c.Dead == nil:
		return &outbox.InvalidError{Field: "Config.Dead", Problem: "is nil: messages of an Emitter that are refused for good need a place, such as a *pgoutbox.Outbox"}
	case !c.messages() && c.Dead != nil:
		return &outbox.InvalidError{Field: "Config.Dead", Problem: "is set, but Prefix is not: dead rows stay in their table"}
	}
	return nil
}

const (
	maxBatch    = 10_000
	maxInFlight = 64
)

func (c Config) validateNumbers() error {
	switch {
	case c.BatchSize < 1 || c.BatchSize > maxBatch:
		return &outbox.InvalidError{Field: "Config.BatchSize", Problem: fmt.Sprintf("is %d, want 1 to %d", c.BatchSize, maxBatch)}
	case c.MaxInFlight < 1 || c.MaxInFlight > maxInFlight:
		return &outbox.InvalidError{Field: "Config.MaxInFlight", Problem: fmt.Sprintf("is %d, want 1 to %d", c.MaxInFlight, maxInFlight)}
	case c.MaxPending < c.BatchSize:
		return &outbox.InvalidError{Field: "Config.MaxPending", Problem: fmt.Sprintf("is %d, want at least BatchSize (%d)", c.MaxPending, c.BatchSize)}
	case c.MaxPendingBytes < 1:
		return &outbox.InvalidError{Field: "Config.MaxPendingBytes", Problem: fmt.Sprintf("is %d, want at least 1", c.MaxPendingBytes)}
	case c.MaxAttempts < 1:
		return &outbox.InvalidError{Field: "Config.MaxAttempts", Problem: fmt.Sprintf("is %d, want at least 1", c.MaxAttempts)}
	case c.WarnWAL < 1:
		return &outbox.InvalidError{Field: "Config.WarnWAL", Problem: fmt.Sprintf("is %d, want at least 1", c.WarnWAL)}
	}
	return nil
}
