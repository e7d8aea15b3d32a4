package consumer

import (
	"context"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer"
)

// A Delivery is one copy of a message, as a broker hands it over.
type Delivery struct {
	// Handler names the handler within the group: in Watermill the Router's name of it, in a worker its Config.Handler.
	// It is data: records are kept under it, and under a new name everything within the window runs again. Required; a
	// Source leaves it empty.
	Handler string

	// Topic is where it came from. It stands in dead letters and errors.
	Topic string

	// Origin is the namespace, such as a stream, within which Position is unique, and so is an ID without a namespace
	// of its own. Empty: Topic.
	Origin string

	// System names the messaging system in telemetry, such as "nats" or "kafka" (OpenTelemetry's messaging.system).
	// Empty: what Config.System says.
	System string

	// Header travels beside the payload. Process does not change it, and you must not while Process runs.
	Header producer.Header

	// UUID is a Watermill message's UUID; empty elsewhere.
	UUID string

	// Position is where the broker keeps it within its origin, such as partition, offset and epoch. It is for
	// producer.ExtractPosition, and tells dead letters of messages without an ID apart. May be empty.
	Position string

	// Count says how often the message has been delivered, from 1. The broker counts, and so does its source when it
	// offers a message again. Zero: nobody counts.
	Count int

	// WaitLimit bounds how many deliveries of its source wait in Process at once, see Config.MaxWait. Nil: no bound.
	WaitLimit *oncemill.WaitLimit

	// Stopping, when it is closed, ends the delivery's wait in Process: it is not to start any more. Nil: only its
	// context ends it.
	Stopping <-chan struct{}

	// Message is the delivered message, if it has an identity, such as a pointer. A delivery of the same Message with
	// the same key, under the context of a handler, means that the handler is guarded twice. It must be comparable.
	// Nil: the key alone tells.
	Message any

	// Payload is not changed.
	Payload []byte
}

// A Handler does the work for one message. Its error decides what happens next: see oncemill.RunFunc. It has no
// outputs; if it publishes messages itself, give them IDs by oncemill.FromContext(ctx).ID.
type Handler func(ctx context.Context) error

// Action is what to do with a delivery.
type Action string

// The values of Action.
const (
	// Ack: there is an outcome, and everything it produced is published.
	Ack Action = "ack"

	// RetryLater: deliver again after Decision.Delay; never a bare nak.
	RetryLater Action = "retry"

	// Reject: the broker should not deliver it again, and no dead letter has it. Terminate it where the broker can, and
	// tell somebody.
	Reject Action = "reject"

	// Leave: neither ack nor nak. Another owner has the key and will settle the message.
	Leave Action = "leave"
)

// A Decision says what to do with a delivery, and why.
type Decision struct {
	Action Action
	Delay  time.Duration // for RetryLater: not before

	// Keep, for RetryLater: the record is not the reason. The store does not answer, or the guard is not set up right.
	// A transport keeps such a delivery and offers it again. Giving it back would use up deliveries that the broker
	// allows and bring it back to the same trouble.
	Keep bool

	// ID is the message ID under which the delivery was guarded. Empty: none was found, or it cannot be used.
	ID string

	Err    error           // why it is not Ack; for Ack, the failure that was stored, if any
	Result oncemill.Result // for Ack and Reject, if there is an outcome
}
