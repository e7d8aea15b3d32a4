package franz

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// Order says which records are handled one after the other.
type Order string

// Orders.
const (
	PerPartition Order = "partition" // one record of a partition at a time, in the order of offsets
	// records of a partition with equal keys in the order of offsets, everything else at once; a record without a key
	// has no order
	PerKey Order = "key"
)

// Config configures a Worker. Handler is required, everything else has a safe default.
type Config struct {
	// Handler names a Worker's handler within the group: consumer.Delivery.Handler. It is data: records are kept under
	// it, and under another name everything within the policy's Window runs again. It is one for all topics of the
	// worker: where one message ID may be in several of them, for messages that are each to be handled, give each topic
	// a worker. Required for a Worker. A Source has none: a Router names its handlers.
	Handler string

	// Order says which records are handled one after the other. Partitions are always independent of each other. Zero:
	// PerPartition.
	Order Order

	// MaxInFlight is how many records are handled at once, over all partitions. Under PerKey it is also how many of a
	// partition may be handled or wait, for their time or for others of their key: with so many, the partition takes no
	// more. It does not bound how far a partition gets ahead of a record that waits: see PerKey in docs/brokers.md. Of
	// each partition, about as many more are fetched ahead, or what one fetch brings (kgo.FetchMaxPartitionBytes), if
	// that is more. Zero: 256.
	MaxInFlight int

	// Grace is how long running handlers may go on when Run's context has ended, before their contexts are cancelled.
	// At most half the rebalance timeout, which Opts sets to twice Grace, or to 60 s if that is more. Make it longer
	// than the longest handler, above all under a policy that parks: a run that is cut off ends as unknown there. At
	// most twelve days. Zero: 30 s.
	Grace time.Duration

	// CommitEvery is how often offsets are committed. They are also committed when partitions are revoked and at the
	// end of Run. At least 10 ms. Zero: 1 s.
	CommitEvery time.Duration

	// Retry lists retry topics, ordered by Delay. A record whose handler failed is published to the first, from there
	// to the second, and so on, and from the last to itself, instead of holding up what comes behind it: so a failed
	// record loses its place in the order. The worker's client must consume these topics too, and be allowed to write
	// to them. A topic that is taken out of the list has to be empty: nobody else has the messages that wait in it
	// (docs/operations.md says what to do). Nil: a failed record waits in its place.
	Retry []RetryTopic

	// Logger gets what operators must know. Nil: slog.Default().
	Logger *slog.Logger
}

// A RetryTopic is where failed records wait. All its records should belong to one group: another group would handle
// them too.
type RetryTopic struct {
	// Topic is its name. It must keep records for longer than they wait, which is for Delay, the policy's backoff or
	// what oncemill.RetryAfter asks for, whichever is longest, and the time that the group may be away (retention.ms),
	// and must not be compacted. It should take what the source topics take, and some hundred bytes more
	// (max.message.bytes). Required.
	Topic string

	// Delay is how long a record waits there at least. A policy's backoff or oncemill.RetryAfter can ask for more.
	// Records wait behind each other, so that one with a longer delay holds up others of its partition. At least zero.
	Delay time.Duration
}

const (
	defaultMaxInFlight = 256
	defaultGrace       = 30 * time.Second

	minCommitEvery = 10 * time.Millisecond
	// twice that is a rebalance timeout, of which Kafka has 32 bits of milliseconds
	maxGrace = 12 * 24 * time.Hour
)

func (c Config) withDefaults() Config {
	c.Order = cmp.Or(c.Order, PerPartition)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, defaultMaxInFlight)
	c.Grace = cmp.Or(c.Grace, defaultGrace)
	c.CommitEvery = cmp.Or(c.CommitEvery, time.Second)
	c.Logger = telemetry.Logger(cmp.Or(c.Logger, slog.Default()))
	return c
}

// validate checks a config after its defaults were filled in.
func (c Config) validate() error {
	switch {
	case c.Order != PerPartition && c.Order != PerKey:
		return fmt.Errorf("franz: Config.Order is %q, want %q or %q", c.Order, PerPartition, PerKey)
	case c.MaxInFlight < 1:
		return fmt.Errorf("franz: Config.MaxInFlight is %d, want at least 1, or zero", c.MaxInFlight)
	case c.Grace < 0 || c.Grace > maxGrace:
		return fmt.Errorf("franz: Config.Grace is %v, want 0 to %v", c.Grace, maxGrace)
	case c.CommitEvery < minCommitEvery:
		return fmt.Errorf("franz: Config.CommitEvery is %v, want at least %v, or zero", c.CommitEvery, minCommitEvery)
	}
	return c.validateRetry()
}

func (c Config) validateRetry() error {
	seen := map[string]bool{}
	for i, r := range c.Retry {
		if problem := topicProblem(r.Topic); problem != "" {
			return fmt.Errorf("franz: Config.Retry[%d].Topic %s", i, problem)
		}
		switch {
		case seen[r.Topic]:
			return fmt.Errorf("franz: Config.Retry[%d].Topic is %q, as an earlier one", i, r.Topic)
		case r.Delay < 0:
			return fmt.Errorf("franz: Config.Retry[%d].Delay is %v, want at least 0", i, r.Delay)
		case i > 0 && r.Delay < c.Retry[i-1].Delay:
			return fmt.Errorf("franz: Config.Retry[%d].Delay is %v, want at least %v, that of the topic before it", i,
				r.Delay, c.Retry[i-1].Delay)
		}
		seen[r.Topic] = true
	}
	return nil
}

// room is how many records of a partition may be handled, or wait for that, at a time.
func (c Config) room() int {
	if c.Order == PerKey {
		return c.MaxInFlight
	}
	return 1
}

// orderKey is what records of a partition have in common that are handled in order: there is room for one alone, or
// their keys tell. An empty key is a key.
func (c Config) orderKey(rec *kgo.Record) string {
	if c.Order == PerPartition || rec.Key == nil {
		return ""
	}
	return "k" + string(rec.Key)
}
