package outbox

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// Config configures a Relay. The zero value is ready to use. Contradictions are errors of NewRelay that name the field.
type Config struct {
	// BatchSize is the most rows that are leased and published together. Memory holds up to three batches, and up to 32
	// rows that got no answer before. A batch must be published within PublishTimeout, so set it lower for payloads of
	// megabytes. After an error of the store a relay asks for half as many rows, and then slowly for more again. So it
	// reads in parts what takes too long to read together. Zero: 1,000.
	BatchSize int

	// PollInterval is the longest pause between two looks at the store for new or refused rows. While nothing is due,
	// the pause grows up to it, and Wake ends it. After a batch without an acknowledgement the pause is at most as
	// long, and Wake does not end it. In the same time there are four more looks for rows that got no answer before.
	// Zero: 1 s.
	PollInterval time.Duration

	// PublishTimeout is how long a batch may take to be published. A message that is not acknowledged by then is
	// unknown. An operation of the store may take as long, but at most 10 s. The same limit holds for publishing after
	// the context of Run has ended. Zero: 30 s.
	PublishTimeout time.Duration

	// Lease is how long a batch is kept from other relays. When it ends, another relay publishes a dead relay's rows.
	// It is at least PublishTimeout plus two operations of the store. Zero: 1 min, or that sum if it is longer.
	Lease time.Duration

	// MaxAttempts is how often a row may be refused before it is dead. Attempts without an answer do not count.
	// Zero: 20.
	MaxAttempts int

	// Backoff is how long a row waits after an attempt that was not acknowledged. Its Max is also how long rows may
	// wait after an outage. Zero: 1 s to 1 min, or to Min if that is longer.
	Backoff oncemill.Backoff

	// Retention is how long published rows are kept. They can be published again for a broker that lost messages
	// (Replayer). Consumers must recognise such late copies, and those of rows without an answer, which are sent for as
	// long as it takes. So their dedup windows must be at least twice this, plus the longest outage of the broker. With
	// the default window of 24 h, set Retention lower or the window higher. Zero: 24 h. DeleteAtOnce: not at all.
	Retention time.Duration

	// Telemetry says where traces and metrics go. Zero: OpenTelemetry's global providers and propagator.
	Telemetry oncemill.Telemetry

	// Logger gets what operators must know: IDs, topics and errors, never keys, headers or payloads. Nil:
	// slog.Default().
	Logger *slog.Logger
}

// DeleteAtOnce is the Config.Retention that removes rows as soon as they are published.
const DeleteAtOnce time.Duration = -1

func (c Config) withDefaults() Config {
	c.BatchSize = cmp.Or(c.BatchSize, 1000)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 30*time.Second)
	c.Lease = cmp.Or(c.Lease, max(time.Minute, c.shortestLease()))
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 20)
	c.Backoff.Min = cmp.Or(c.Backoff.Min, time.Second)
	c.Backoff.Max = cmp.Or(c.Backoff.Max, max(time.Minute, c.Backoff.Min))
	c.Retention = cmp.Or(c.Retention, 24*time.Hour)
	c.Logger = telemetry.Logger(cmp.Or(c.Logger, slog.Default()))
	return c
}

// storeTimeout bounds one operation of the store, and publishing after Run was told to end.
func (c Config) storeTimeout() time.Duration { return min(10*time.Second, c.PublishTimeout) }

// shortestLease is what it takes to lease, publish and settle, each with its timeout.
func (c Config) shortestLease() time.Duration { return c.PublishTimeout + 2*c.storeTimeout() }

const (
	maxBatch = 10_000
	longest  = 365 * 24 * time.Hour // keeps sums of times far from overflow
)

// validate checks a config after its defaults were filled in.
func (c Config) validate() error {
	if c.BatchSize < 1 || c.BatchSize > maxBatch {
		return invalid("Config.BatchSize", fmt.Sprintf("is %d, want 1 to %d", c.BatchSize, maxBatch))
	}
	if c.MaxAttempts < 1 {
		return invalid("Config.MaxAttempts", fmt.Sprintf("is %d, want at least 1", c.MaxAttempts))
	}
	for _, d := range [...]struct {
		field string
		value time.Duration
	}{
		{"Config.PollInterval", c.PollInterval},
		{"Config.PublishTimeout", c.PublishTimeout},
		{"Config.Lease", c.Lease},
		{"Config.Backoff.Min", c.Backoff.Min},
		{"Config.Backoff.Max", c.Backoff.Max},
	} {
		if d.value < time.Millisecond || d.value > longest {
			return invalid(d.field, fmt.Sprintf("is %v, want 1ms to %v", d.value, longest))
		}
	}
	switch {
	case c.Lease < c.shortestLease():
		return invalid("Config.Lease",
			fmt.Sprintf("is %v, want at least %v, what it takes to lease, publish and settle", c.Lease,
				c.shortestLease()))
	case c.Backoff.Max < c.Backoff.Min:
		return invalid("Config.Backoff.Max", fmt.Sprintf("is %v, want at least Min (%v)", c.Backoff.Max,
			c.Backoff.Min))
	case c.Retention != DeleteAtOnce && (c.Retention < time.Millisecond || c.Retention > longest):
		return invalid("Config.Retention", fmt.Sprintf("is %v, want 1ms to %v, or DeleteAtOnce", c.Retention,
			longest))
	}
	return nil
}
