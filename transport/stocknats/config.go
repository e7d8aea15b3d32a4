package stocknats

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// Config configures a subscriber. The zero value is usable.
type Config struct {
	// Grace is how long handlers may go on after shutdown has begun before their contexts are cancelled. It must be below
	// the CloseTimeout of the Router, which is 30 s unless set. Zero: 25 s.
	Grace time.Duration

	// Lease is the lease of the guard's policy. A delivery whose key another owner took over comes back after it, as an
	// adapter cannot leave a delivery alone. Zero: 30 s, as in a zero policy.
	Lease time.Duration

	// AckWait is the ack deadline of a consumer that NATS makes. It is extended while a handler runs, so it need not be
	// longer than a handler: it is how long a message waits for another process when this one dies. Zero: 30 s. JetStream
	// does not look at it: its consumers bring theirs.
	AckWait time.Duration

	// MaxAckPending is how many messages a consumer that NATS makes has under way, over all processes. A message that waits
	// its turn in a process is not extended: with MaxAckPending / processes × the time of a handler above AckWait, messages
	// are delivered twice, which the guard recognises. Zero: 32. JetStream does not look at it.
	MaxAckPending int

	// Logger gets what operators must know. Nil: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Grace, 25*time.Second)
	set(&c.Lease, 30*time.Second)
	set(&c.AckWait, 30*time.Second)
	if c.MaxAckPending == 0 {
		c.MaxAckPending = 32
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = telemetry.Logger(c.Logger)
	return c
}

// validate checks a config after its defaults were filled in.
func (c Config) validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Grace", c.Grace}, {"Lease", c.Lease}, {"AckWait", c.AckWait}} {
		if d.value < time.Millisecond {
			return fmt.Errorf("stocknats: Config.%s is %v, want at least 1 ms, or zero", d.name, d.value)
		}
	}
	if c.MaxAckPending < 0 {
		return fmt.Errorf("stocknats: Config.MaxAckPending is %d, want at least 1, or zero", c.MaxAckPending)
	}
	return nil
}

// longestWork is the adapters' own patience with a handler, where the user sets none. Theirs is 30 s, and then they
// take the next message while the handler goes on.
const longestWork = 24 * time.Hour
