package natsjs

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// Config configures how a Worker or a Source consumes. A Worker needs a Handler, everything else has a safe default.
type Config struct {
	// Handler names a Worker's handler within the group: consumer.Delivery.Handler. It is data: records are kept under
	// it, and under another name everything within the policy's Window runs again. Workers that share it share the
	// work. Required for a Worker. A Source has none: a Router names its handlers.
	Handler string

	// MaxInFlight is how many messages are in flight at most. They run, wait for others of their order key or for a
	// retry, or are asked for. All are in memory. With 1 the whole consumer has a strict order. It must not be more
	// than the consumer's MaxAckPending. Zero: 256, or the consumer's MaxAckPending if that is less.
	//
	// A retry waits here if its message has an order key, or if delayed naks take up half of MaxAckPending. It also
	// waits here for the last Policy.MaxAttempts deliveries of a MaxDeliver. When as many messages as MaxInFlight wait
	// here, the worker stops until the first is due.
	//
	// At most 4 MiB, or one message, are on the way at a time. If messages are suddenly much larger, MaxInFlight of
	// them may be.
	MaxInFlight int

	// Order returns the order key of a message. Messages with the same key run one after the other, in the order of the
	// consumer; all others run at once. It must be a function of the message alone. Messages with the key "" have no
	// order. Nil: none has. See BySubject, BySubjectToken and ByHeader.
	//
	// Two workers, or two subscriptions, of one consumer each keep the order of what they get, but nothing keeps it
	// between them. After a crash, a broken connection, a lost claim or an ended grace, or if the process stands still
	// for half of AckWait, messages in flight come again after AckWait, behind later ones. A drain gives the rest of an
	// order key back in its order, but not before what another worker has, or asks for before the server has carried
	// that out, nor before what an earlier drain gave back and the run has not got yet. For a strict order over all
	// workers, set the consumer's MaxAckPending to 1.
	Order func(jetstream.Msg) string

	// Grace is how long handlers may go on after the end of Run's context. Then their own contexts are cancelled. Make
	// it longer than the longest handler, above all under a policy that parks. There a run that is cut off and does not
	// return oncemill.NoEffect ends as unknown. Zero: 30 s.
	Grace time.Duration

	// Logger gets what operators must know. Nil: slog.Default().
	Logger *slog.Logger
}

// defaultMaxInFlight is the MaxInFlight of a zero Config.
const defaultMaxInFlight = 256

func (c Config) withDefaults() Config {
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = telemetry.Logger(c.Logger)
	return c
}

func (c Config) validate() error {
	switch {
	case c.MaxInFlight < 0:
		return fmt.Errorf("natsjs: Config.MaxInFlight is %d, want at least 1, or zero", c.MaxInFlight)
	case c.Grace < time.Millisecond:
		return fmt.Errorf("natsjs: Config.Grace is %v, want at least 1ms, or zero", c.Grace)
	}
	return nil
}

// SourceConfig configures a Source. Consumer is required.
type SourceConfig struct {
	Config

	// Consumer returns the consumer of a topic. It must be one of the JetStream that NewSource got, which asks for its
	// messages. Each Check and Run calls it. Required.
	Consumer func(ctx context.Context, topic string) (jetstream.Consumer, error)
}

// BySubject is the Config.Order that makes each subject an order key.
func BySubject(msg jetstream.Msg) string { return msg.Subject() }

// BySubjectToken returns the Config.Order that makes each value of the nth token of the subject an order key. It counts
// from 0: with 1, "orders.c7.created" has the order key "c7". Messages with fewer tokens have no order. It panics if n
// is negative.
func BySubjectToken(n int) func(jetstream.Msg) string {
	if n < 0 {
		panic("natsjs: BySubjectToken of a negative number")
	}
	return func(msg jetstream.Msg) string {
		i := 0
		for token := range strings.SplitSeq(msg.Subject(), ".") {
			if i == n {
				return token
			}
			i++
		}
		return ""
	}
}

// ByHeader returns the Config.Order that makes each value of a header an order key, such as producer.HeaderKey. It
// finds the name in any case, and takes the first of several values. Messages without the header have no order.
func ByHeader(name string) func(jetstream.Msg) string {
	return func(msg jetstream.Msg) string {
		header := msg.Headers()
		if values := header[name]; len(values) > 0 {
			return values[0]
		}
		first := ""
		for other, values := range header { // of several spellings the least, so that the key is always the same
			if len(values) > 0 && strings.EqualFold(other, name) && (first == "" || other < first) {
				first = other
			}
		}
		if first == "" {
			return ""
		}
		return header[first][0]
	}
}
