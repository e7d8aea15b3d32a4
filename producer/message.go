package producer

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A Message is something to publish. Consumers deduplicate by its ID, which is given once, before the first attempt to
// publish, and stays through every retry.
type Message struct {
	// ID is the stable identity of the logical message. See NewID and DeriveID. Publishers that accept an empty one say
	// so, and mint an ID.
	ID string

	// Topic is where the message goes: a NATS subject, a Kafka topic. Never empty.
	Topic string

	// Key is the order key, which is Kafka's partition key. Empty: the message is not ordered against others.
	Key string

	// Header travels beside the payload. Names that begin with "oncemill-" are this project's own.
	Header Header

	// Payload is opaque bytes. Nil is like empty, except to franz.Publisher without an outbox: there it is a tombstone.
	Payload []byte

	// NotBefore delays the message. Outboxes hold it until then; publishers that send at once refuse a time that lies
	// ahead. Zero: no delay.
	NotBefore time.Time
}

// A Header holds one value for each name. Names are compared without regard to case, because brokers and clients spell
// them differently.
type Header map[string]string

// Get returns the value of a name, in any case, or "". An exact match wins, then the spelling that comes first in byte
// order.
func (h Header) Get(name string) string {
	if v, ok := h[name]; ok {
		return v
	}
	var value, spelling string
	var found bool
	for k, v := range h {
		if strings.EqualFold(k, name) && (!found || k < spelling) {
			value, spelling, found = v, k, true
		}
	}
	return value
}

// Header names of this project. They are lower case; NATS, Kafka and Watermill carry them as they are.
const (
	HeaderID         = "oncemill-id"         // the message ID
	HeaderKey        = "oncemill-key"        // Message.Key, where the broker has no place of its own for it
	HeaderName       = "oncemill-name"       // the name of an output among its handler's outputs; not sent
	HeaderPurpose    = "oncemill-purpose"    // why this copy exists, when it is not the first publication
	HeaderGeneration = "oncemill-generation" // which deliberate replay this is, a number
	HeaderResend     = "oncemill-resend"     // a relay sends the message again: how many attempts before got no answer
	// dead letters: the ID of the message, while HeaderID is the dead letter's own
	HeaderOriginalID = "oncemill-original-id"
	HeaderTopic      = "oncemill-topic"    // dead letters: the topic that the message came from
	HeaderHandler    = "oncemill-handler"  // dead letters: tenant/group/handler that gave up, with "/" in names as %2F
	HeaderOutcome    = "oncemill-outcome"  // dead letters: failed, unknown, mismatch or rejected
	HeaderReason     = "oncemill-reason"   // dead letters: why
	HeaderAttempts   = "oncemill-attempts" // dead letters: how many runs there were
	HeaderFence      = "oncemill-fence"    // dead letters: what a rerun has to name
	// dead letters: begins the name of a header that not every broker carries; name and value are URL query escaped
	HeaderEscaped = "oncemill-escaped-"
	// asks a consumer to run a stored failure again: the fence of that failure
	HeaderRerun = "oncemill-rerun"
	// reruns, and the dead letters that they end in: how often the message has been run again, a number
	HeaderReruns = "oncemill-reruns"
)

// Values of HeaderPurpose.
const (
	PurposeDeadLetter = "dead-letter"
	PurposeReplay     = "replay"
	PurposeRetry      = "retry"
)

// A Publisher sends messages, or writes them where a relay will find them. It is safe for concurrent use.
//
// Publish returns nil only when every message is acknowledged. A *PublishError says which messages are not, and that
// all the others are. After any other error it is unknown which messages were published. Publish may be repeated with
// the same messages: a second copy has the same ID.
type Publisher interface {
	Publish(ctx context.Context, messages ...Message) error
}

// PublishError says which messages of a Publish call were not acknowledged. The others were.
type PublishError struct {
	Failures []Failure // in the order of the messages, never empty
}

// A Failure is one message that was not acknowledged.
type Failure struct {
	Index   int    // of the message in the call
	ID      string // of the message
	Err     error
	Unknown bool // nobody refused it: the broker was away, or the message may have been published all the same
}

func (e *PublishError) Error() string {
	f := e.Failures[0]
	s := fmt.Sprintf("publish message %q: %v", f.ID, f.Err)
	if f.ID == "" {
		s = fmt.Sprintf("publish message %d of the call, which has no ID: %v", f.Index, f.Err)
	}
	if n := len(e.Failures) - 1; n > 0 {
		s += fmt.Sprintf(" (and %d more)", n)
	}
	return s
}

// Unwrap returns the errors of all failures.
func (e *PublishError) Unwrap() []error {
	errs := make([]error, len(e.Failures))
	for i, f := range e.Failures {
		errs[i] = f.Err
	}
	return errs
}
