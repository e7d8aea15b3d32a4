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

// Attribute keys of the semantic conventions for HTTP.
const (
	keyMethod = attribute.Key("http.request.method")
	keyRoute  = attribute.Key("http.route")
	keyStatus = attribute.Key("http.response.status_code")
	keyScheme = attribute.Key("url.scheme")
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
type Outcome string

// The outcomes of deliveries.
const (
	Claimed             Outcome = "claimed"               // the first run
	Reclaimed           Outcome = "reclaimed"             // a later run: an attempt failed, or a lease expired
	PublishOnly         Outcome = "publish_only"          // the outcome was known, its messages had to be published
	DuplicateCompleted  Outcome = "duplicate_completed"   // a success was replayed
	DuplicateFailed     Outcome = "duplicate_failed"      // a failure was replayed
	DuplicateUnknown    Outcome = "duplicate_unknown"     // a parked outcome was replayed
	DuplicateInProgress Outcome = "duplicate_in_progress" // another owner is at it
	NotDue              Outcome = "not_due"               // a retry that came too early
	FingerprintMismatch Outcome = "fingerprint_mismatch"  // same ID, other content
	Rejected            Outcome = "rejected"              // no usable ID, or unreadable: nothing was claimed
	StoreError          Outcome = "store_error"           // the store did not answer, and the handler did not run
	Bypassed            Outcome = "bypassed"              // the handler ran unguarded, as the policy says
)

// duplicate reports whether a delivery with this outcome was one too many.
func (o Outcome) duplicate() bool { return strings.HasPrefix(string(o), "duplicate_") }

// A Detail says more about some outcomes: what made a duplicate, or why a delivery was not guarded. The set is closed.
type Detail string

// The details of outcomes.
const (
	NoDetail         Detail = ""
	BrokerRedelivery Detail = "broker_redelivery" // of duplicates: this copy was delivered before
	ProducerRetry    Detail = "producer_retry"    // another copy has the same ID
	RelayResend      Detail = "relay_resend"      // a relay sent another copy, because the first got no answer
	Operator         Detail = "operator"          // somebody asked for it: a replay, or a rerun
	UnknownCause     Detail = "unknown"           // nothing tells
	StoreDown        Detail = "store_down"        // of bypassed deliveries
	MissingID        Detail = "missing_id"
)

// A Failure is the error.type of a handler or of a delivery. The set is closed.
type Failure string

// What went wrong.
const (
	NoFailure         Failure = ""
	FailedPermanently Failure = "permanent"
	FailedRetryAfter  Failure = "retry_after"
	FailedNoEffect    Failure = "no_effect"
	FailedPanic       Failure = "panic"
	FailedCanceled    Failure = "canceled"
	FailedTimeout     Failure = "timeout"
	FailedClaimLost   Failure = "claim_lost"
	FailedNested      Failure = "nested" // an error of another guard, which the handler used
	FailedOther       Failure = other

	FailedMismatch    Failure = "mismatch" // from here on of deliveries only
	FailedRejected    Failure = "rejected"
	FailedStore       Failure = "store"
	FailedUnrecorded  Failure = "unrecorded"
	FailedUnpublished Failure = "unpublished"
)

// A Refusal is the error.type of a webhook that was not answered with 200. The set is closed.
type Refusal string

// Why a webhook was refused.
const (
	RefusedMethod       Refusal = "method"        // it was no POST
	RefusedTooLarge     Refusal = "too_large"     // longer than MaxBody
	RefusedUnread       Refusal = "unread"        // its body ended early
	RefusedSignature    Refusal = "signature"     // no signature of a known key
	RefusedTooOld       Refusal = "too_old"       // signed at a time too far from this machine's clock
	RefusedUnusable     Refusal = "unusable"      // proven, but no event
	RefusedOtherContent Refusal = "other_content" // a known event with another body
	RefusedBusy         Refusal = "busy"          // another request is at the event
	RefusedUnavailable  Refusal = "unavailable"   // the store, the publisher or the verifier did not answer
	RefusedFailed       Refusal = "failed"        // the publisher refused it for good
)

// Results of a heartbeat, and of what a broker takes for duplicates.
const (
	RenewalOK    = "ok"
	RenewalLost  = "lost"
	RenewalError = "error"

	resultRepeated   = "repeated"
	resultUnexpected = "unexpected"
)

// An End is how a message ended that did not succeed: the oncemill.result of its outcome. The set is closed.
type End string

// The ends without success.
const (
	EndedPermanently End = "permanent" // the handler said so
	EndedExhausted   End = "exhausted" // the attempts were spent
	EndedUnknown     End = "unknown"   // it was parked: it may or may not have happened
)

// Reasons why a message was not acknowledged.
const (
	sendRefused = "refused"
	sendUnknown = "unknown"
)

// maxText is the longest foreign text that is told, in bytes. No ID, no destination and hardly an error is longer, and
// collectors refuse everything that comes with some megabytes.
const maxText = 4 << 10

// text makes a foreign string fit for telemetry. OTLP carries UTF-8 alone, and for one bad value an exporter drops
// everything that it would have sent with it.
func text(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
