package consumer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/producer"
)

// Config configures a Processor. Group is required, everything else has a safe default.
type Config struct {
	// Group is the consumer group: all processes that share the work of one logical consumer. Required. If several
	// services must each handle a message, give each a Group of its own, whatever their groups or durables at the
	// broker. Under one Group, with the same handler in one store, a message that one has handled is a duplicate to the
	// others and never runs there.
	Group string

	// Tenant separates data that must not share message IDs. Empty: "default".
	Tenant string

	// Policy says how long outcomes are remembered and what happens when things go wrong. Zero: oncemill.LowValue.
	Policy oncemill.Policy

	// MaxWait is how long a delivery waits here for a busy key, a retry that is not due or a store that does not
	// answer. Then it goes back to the broker. Keep it well below the broker's ack deadline. It blocks an adapter that
	// delivers one message at a time. Zero: 10 s. NoWait: not at all.
	MaxWait time.Duration

	// DeadLetters publishes failed, parked, mismatching and unidentifiable messages to DeadLetterTopic, and only then
	// are they acknowledged. It must be synchronous. While it cannot publish, they come again and may hold up other
	// messages, and the log says so.
	//
	// Nil: messages get lost. They are rejected. Under Watermill's own adapters they are then delivered again until
	// somebody acts. A worker or a Source ends them: Kafka passes over them; JetStream terminates them, and a
	// work-queue stream also deletes them. Only the log has them then, without their payload, and records keep none
	// either. Workers and the middleware warn of that when they start.
	DeadLetters producer.Publisher

	// DeadLetterTopic is where dead letters go. Set it together with DeadLetters. Make the topic, or the stream that
	// listens on it, first. This group must not consume it. Nobody else may who does not mean to handle dead letters:
	// to other handlers they are new messages, with IDs of their own.
	//
	// A handler never runs for a dead letter that it made, nor for a dead letter of that. Such a delivery is
	// acknowledged, with an error in the log; a work-queue stream then deletes it. If somebody sent it to its handler
	// as it is, from elsewhere than DeadLetterTopic, it is first published there again, up to ten times. Rerun turns a
	// dead letter into a message that its handler runs for.
	//
	// To handle dead letters, use another Group or Handler. Under the names of their makers, and without DeadLetters,
	// they are not handled and come again.
	DeadLetterTopic string

	// Extractors find the message ID, in this order. If one panics for a message, or Fingerprint does, the message
	// comes again: the program has a mistake. Nil: producer.DefaultExtractors().
	Extractors []producer.Extractor

	// System names the messaging system in telemetry, as OpenTelemetry's messaging.system does. It is for deliveries
	// that do not name it (Delivery.System), such as those of Watermill's own adapters. Empty: "unknown".
	System string

	// Trace says how the span of a delivery belongs to the trace of its message. Zero: TraceParent, which shows a
	// message as one trace. TraceLink suits long streams and batches. Policy.Telemetry says where traces go.
	Trace TraceMode

	// Fingerprint identifies the content, so that a reused ID is noticed. Nil: the SHA-256 of the payload.
	Fingerprint producer.Fingerprinter
}

// NoWait is the Config.MaxWait that sends busy deliveries back to the broker at once. Some Router adapters cannot be
// told the delay, and would deliver them again and again without a pause. There they go back after Policy.Backoff.Min,
// at most 10 s.
const NoWait time.Duration = -1

// usualWait is the default Config.MaxWait.
const usualWait = 10 * time.Second

func (c Config) withDefaults() Config {
	if c.Tenant == "" {
		c.Tenant = "default"
	}
	if c.MaxWait == 0 {
		c.MaxWait = usualWait
	}
	if c.Trace == "" {
		c.Trace = TraceParent
	}
	if c.Extractors == nil {
		c.Extractors = producer.DefaultExtractors()
	}
	if c.Fingerprint == nil {
		c.Fingerprint = producer.FingerprintPayload
	}
	return c
}

// validate checks a config after its defaults were filled in.
func (c Config) validate() error {
	if c.Group == "" {
		return invalid("Config.Group", "is empty: name what all processes that share this work have in common")
	}
	probe := dedupstore.Key{Tenant: c.Tenant, Group: c.Group, Handler: "probe", ID: "probe"}
	if err := probe.Validate(); err != nil {
		if part, ok := errors.AsType[*dedupstore.InvalidError](err); ok {
			return invalid("Config."+strings.TrimPrefix(part.Field, "Key."), part.Problem)
		}
		return err
	}
	switch {
	case c.Trace != TraceParent && c.Trace != TraceLink:
		return invalid("Config.Trace", fmt.Sprintf("is %q, want %q or %q", c.Trace, TraceParent, TraceLink))
	case c.MaxWait < 0 && c.MaxWait != NoWait:
		return invalid("Config.MaxWait", fmt.Sprintf("is %v, want at least 0, or NoWait", c.MaxWait))
	case c.DeadLetters != nil && isnil.Nil(c.DeadLetters):
		return invalid("Config.DeadLetters", fmt.Sprintf("holds a nil %T", c.DeadLetters))
	case c.DeadLetters != nil && c.DeadLetterTopic == "":
		return invalid("Config.DeadLetterTopic", "is empty although Config.DeadLetters is set")
	case c.DeadLetters == nil && c.DeadLetterTopic != "":
		return invalid("Config.DeadLetters", fmt.Sprintf("is nil although Config.DeadLetterTopic is %q",
			c.DeadLetterTopic))
	}
	for i, extract := range c.Extractors {
		if extract == nil { // a message that comes to it would be rejected
			return invalid(fmt.Sprintf("Config.Extractors[%d]", i), "is nil")
		}
	}
	return nil
}

// HandlerProblem returns what is wrong with a name for a handler (Delivery.Handler), or "". Workers check theirs with
// it when they are made.
func HandlerProblem(name string) string {
	switch {
	case name == "":
		return "is empty: records are kept under it, and another name runs everything again"
	case strings.HasPrefix(name, "~"):
		return fmt.Sprintf("is %q: names that begin with \"~\" are those of shadow mode, choose another", name)
	case ids.IsOfStep(name):
		return fmt.Sprintf("is %q: names with %q are those of steps, choose another", name, ids.StepMark)
	}
	err := dedupstore.Key{Tenant: "probe", Group: "probe", Handler: name, ID: "probe"}.Validate()
	if part, ok := errors.AsType[*dedupstore.InvalidError](err); ok {
		return part.Problem
	}
	return ""
}

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "consumer", Field: field, Problem: problem}
}
