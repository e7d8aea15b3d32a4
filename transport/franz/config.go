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
	// PerPartition handles one record of a partition at a time, in the order of offsets.
	PerPartition Order = "partition"

	// PerKey handles records of a partition with equal keys in the order of offsets, and everything else at once. A
	// record without a key has no order. Records that are settled behind one that waits are committed with it, so a
	// restart or a rebalance before delivers them again. A record that waits for longer than half the policy's Window
	// is an error in the log, once a minute.
	PerKey Order = "key"
)

// Config configures a Worker. Handler is required, everything else has a safe default.
type Config struct {
	// Handler names a Worker's handler within the group: consumer.Delivery.Handler. It is data: records are kept under
	// it, and under another name everything within the policy's Window runs again. It is the same for all topics of the
	// worker. If one message ID may be in several topics, for messages that must each be handled, give each topic a
	// worker. Required for a Worker. A Source has none: a Router names its handlers.
	Handler string

	// Order says which records are handled one after the other. Partitions are always independent of each other. Zero:
	// PerPartition.
	Order Order

	// MaxInFlight is how many records are in flight at most, over all partitions: received, and not settled. Kafka
	// takes no record back, so one that waits for its next try, or for others of its order, does not count. These are
	// bounded for each partition, together with its records in flight: to one under PerPartition, to MaxInFlight under
	// PerKey. About as many more of each partition are fetched ahead, or what one fetch brings
	// (kgo.FetchMaxPartitionBytes), if that is more. It does not bound how far a partition gets ahead of a record that
	// waits: see PerKey in docs/brokers.md. Zero: 256.
	MaxInFlight int

	// Grace is how long running handlers may go on when Run's context has ended. Then their contexts are cancelled. It
	// is at most half the rebalance timeout, which Opts sets to twice Grace, or to 60 s if that is more. Make it longer
	// than the longest handler, above all under a policy that parks, where a run that is cut off ends as unknown. At
	// most twelve days. Zero: 30 s.
	Grace time.Duration

	// CommitEvery is how often offsets are committed. They are also committed when partitions are revoked and at the
	// end of Run. At least 10 ms. Zero: 1 s.
	CommitEvery time.Duration

	// Retry lists retry topics, ordered by Delay. A record whose handler failed is published to the first, from there
	// to the second, and so on, and from the last to itself. So it does not hold up the records behind it, but loses
	// its place in the order. The worker's client must consume these topics too, and be allowed to write to them.
	//
	// Take a topic out of the list only when it is empty, because nobody else has the messages that wait in it:
	// docs/operations.md says how. Nil: a failed record waits in its place.
	Retry []RetryTopic

	// Logger gets what operators must know. Nil: slog.Default().
	Logger *slog.Logger
}

// A RetryTopic is where failed records wait. All its records should belong to one group: another group would handle
// them too.
//
// The worker's own client publishes a copy of the failed record, and settles the record's offset when that is
// confirmed. The copy has the record's key, value and headers, so it has the same message ID: attempts add up, and the
// dead letter comes after Policy.MaxAttempts. The headers oncemill-topic and oncemill-position name the source.
// oncemill-not-before says when the copy is due, in Unix milliseconds, by the clock of its writer.
//
// A record waits in its place if its copy cannot be published. It also does if it waits for something other than its
// own next attempt, such as a busy key or a store that is down. A dead letter does too, because its copy would not name
// its source.
type RetryTopic struct {
	// Topic is its name. Required. It must not be compacted, and must keep records for longer than they wait
	// (retention.ms). That is the longest of Delay, the policy's backoff and the delays of oncemill.RetryAfter, plus
	// the time that the group may be away. It should take what the source topics take, and some hundred bytes more
	// (max.message.bytes).
	Topic string

	// Delay is how long a record waits there at least. A policy's backoff or oncemill.RetryAfter can ask for more.
	// Records wait behind each other, so one with a longer delay holds up others of its partition. At least zero.
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
	case c.Grace < time.Millisecond || c.Grace > maxGrace:
		return fmt.Errorf("franz: Config.Grace is %v, want 1ms to %v, or zero", c.Grace, maxGrace)
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
			return fmt.Errorf("franz: Config.Retry[%d].Topic is %q, as an earlier one: use each topic once", i, r.Topic)
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
