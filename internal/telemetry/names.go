package telemetry

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"
)

// Scope is the instrumentation scope of all telemetry.
const Scope = "github.com/oncemill/oncemill"

// schema is the version of the semantic conventions whose names are used.
const schema = "https://opentelemetry.io/schemas/1.43.0"

// Attribute keys of this project.
const (
	keyOutcome         = attribute.Key("oncemill.outcome")
	keyCause           = attribute.Key("oncemill.duplicate.cause")
	keyBypass          = attribute.Key("oncemill.bypass.reason")
	keyAttempt         = attribute.Key("oncemill.attempt")
	keyFence           = attribute.Key("oncemill.fence")
	keyAge             = attribute.Key("oncemill.original.age")
	keyKeySource       = attribute.Key("oncemill.key.source")
	keyOrigin          = attribute.Key("oncemill.origin")
	keyAction          = attribute.Key("oncemill.action")
	keyHandler         = attribute.Key("oncemill.handler")
	keyResult          = attribute.Key("oncemill.result")
	keyStore           = attribute.Key("oncemill.store")
	keyOperation       = attribute.Key("oncemill.store.operation")
	keyPolicy          = attribute.Key("oncemill.store.policy")
	keyLinkType        = attribute.Key("oncemill.link.type")
	keyTable           = attribute.Key("oncemill.outbox.table")
	keyRowState        = attribute.Key("oncemill.outbox.state")
	keyBrokerDuplicate = attribute.Key("oncemill.broker.duplicate")
)

// Attribute keys of the semantic conventions for messaging.
const (
	keySystem       = attribute.Key("messaging.system")
	keyOpName       = attribute.Key("messaging.operation.name")
	keyOpType       = attribute.Key("messaging.operation.type")
	keyDestination  = attribute.Key("messaging.destination.name")
	keyGroup        = attribute.Key("messaging.consumer.group.name")
	keyMessageID    = attribute.Key("messaging.message.id")
	keyConversation = attribute.Key("messaging.message.conversation_id")
	keyBatch        = attribute.Key("messaging.batch.message_count")
	keyErrorType    = attribute.Key("error.type")
)

// Kinds of links.
const (
	linkOriginal = "original_attempt" // of a duplicate, to the run that did the work
	linkCreation = "creation"         // to where the message was made
)

// other is the value of what is not told apart: the conventions' name for it.
const other = "_OTHER"

// conversation is the metadata in which Watermill's middleware keeps a correlation ID.
const conversation = "correlation_id"

// Systems that are known here. Others come from the user.
const (
	SystemNATS    = "nats"
	SystemKafka   = "kafka"
	SystemUnknown = "unknown"
)

// Outcome says how a delivery was answered. The set is closed.
type Outcome uint8

// The outcomes of deliveries.
const (
	Claimed             Outcome = iota // the first run
	Reclaimed                          // a later run: an attempt failed, or a lease expired
	PublishOnly                        // the outcome was known, its messages had to be published
	DuplicateCompleted                 // a success was replayed
	DuplicateFailed                    // a failure was replayed
	DuplicateUnknown                   // a parked outcome was replayed
	DuplicateInProgress                // another owner is at it
	NotDue                             // a retry that came too early
	FingerprintMismatch                // same ID, other content
	Rejected                           // no usable ID, or unreadable: nothing was claimed
	StoreError                         // the store did not answer, and the handler did not run
	Bypassed                           // the handler ran unguarded, as the policy says
	outcomes
)

var outcomeNames = [outcomes]string{
	"claimed", "reclaimed", "publish_only", "duplicate_completed", "duplicate_failed", "duplicate_unknown",
	"duplicate_in_progress", "not_due", "fingerprint_mismatch", "rejected", "store_error", "bypassed",
}

func (o Outcome) String() string { return outcomeNames[o] }

// duplicate reports whether a delivery with this outcome was one too many.
func (o Outcome) duplicate() bool { return DuplicateCompleted <= o && o <= DuplicateInProgress }

// A Detail says more about some outcomes: what made a duplicate, or why a delivery was not guarded. The set is closed.
type Detail uint8

// The details of outcomes.
const (
	NoDetail         Detail = iota
	BrokerRedelivery        // of duplicates: this copy was delivered before
	ProducerRetry           // another copy has the same ID
	RelayResend             // an outbox's relay sent another copy, because the first got no answer
	Operator                // somebody asked for it: a replay, or a rerun
	UnknownCause            // nothing tells
	StoreDown               // of bypassed deliveries
	MissingID
	details
)

var detailNames = [details]string{
	"", "broker_redelivery", "producer_retry", "relay_resend", "operator", "unknown", "store_down", "missing_id",
}

func (d Detail) String() string { return detailNames[d] }

// A Failure is the error.type of a handler or of a delivery. The set is closed.
type Failure uint8

// What went wrong.
const (
	NoFailure Failure = iota
	FailedPermanently
	FailedRetryAfter
	FailedNoEffect
	FailedPanic
	FailedCanceled
	FailedTimeout
	FailedClaimLost
	FailedNested // an error of another guard, which the handler used
	FailedOther

	FailedMismatch // from here on of deliveries only
	FailedRejected
	FailedStore
	FailedUnrecorded
	FailedUnpublished
	failures
)

var failureNames = [failures]string{
	"", "permanent", "retry_after", "no_effect", "panic", "canceled", "timeout", "claim_lost", "nested", other,
	"mismatch", "rejected", "store", "unrecorded", "unpublished",
}

func (f Failure) String() string { return failureNames[f] }

// Results of a heartbeat, and of what a broker takes for duplicates.
const (
	RenewalOK    = "ok"
	RenewalLost  = "lost"
	RenewalError = "error"

	resultRepeated   = "repeated"
	resultUnexpected = "unexpected"
)

// An End is how a message ended that did not succeed: the oncemill.result of its outcome. The set is closed.
type End uint8

// The ends without success.
const (
	EndedPermanently End = iota // the handler said so
	EndedExhausted              // the attempts were spent
	EndedUnknown                // it was parked: it may or may not have happened
	ends
)

var endNames = [ends]string{"permanent", "exhausted", "unknown"}

func (e End) String() string { return endNames[e] }

// States of rows.
const (
	rowsPending = "pending"
	rowsDead    = "dead"
)

// Reasons why a message was not acknowledged.
const (
	sendRefused = "refused"
	sendUnknown = "unknown"
)

// maxText is the longest text of others that is told, in bytes: no ID, no destination and hardly an error is longer,
// and collectors refuse all that comes with some megabytes.
const maxText = 4 << 10

// text is what others wrote as it can be told: OTLP carries UTF-8 alone, and of one value that is not an exporter drops
// all that it would have sent with it.
func text(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
