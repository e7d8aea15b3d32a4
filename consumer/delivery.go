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

	// Origin is within what Position, and an ID that brings no namespace of its own, are unique: a stream. Empty:
	// Topic.
	Origin string

	// System names the messaging system in telemetry, such as "nats" or "kafka" (OpenTelemetry's messaging.system).
	// Empty: what Config.System says.
	System string

	// Header is what travels beside the payload. It is not changed, and must not be while Process runs.
	Header producer.Header

	// UUID is a Watermill message's UUID; empty elsewhere.
	UUID string

	// Position is where the broker keeps it within its origin, such as partition, offset and epoch. It is for
	// producer.ExtractPosition, and tells dead letters of messages without an ID apart. May be empty.
	Position string

	// Count is which delivery of the message this is, from 1: as the broker counts, and its source, when that offers
	// one again by itself. Zero: nobody counts.
	Count int

	// WaitLimit bounds how many deliveries of its source wait in Process at once, see Config.MaxWait. Nil: no bound.
	WaitLimit *oncemill.WaitLimit

	// Stopping, when it is closed, ends the delivery's wait in Process: it is not to start any more. Nil: only its
	// context ends it.
	Stopping <-chan struct{}

	// Message is what was delivered, where that has an identity, such as a pointer: a delivery of the same Message with
	// the same key, under the context of a handler, means that the handler is guarded twice. It must be comparable.
	// Nil: the key alone tells.
	Message any

	// Payload is not changed.
	Payload []byte
}

// A Handler does the work for one message. It steers by the error that it returns: see oncemill.RunFunc. It publishes
// nothing by returning; messages that it publishes itself take their IDs from oncemill.FromContext(ctx).ID.
type Handler func(ctx context.Context) error

// Action is what to do with a delivery.
type Action string

// What to do with a delivery.
const (
	// Ack: there is an outcome, and everything it produced is published.
	Ack Action = "ack"

	// RetryLater: deliver again after Decision.Delay; never a bare nak.
	RetryLater Action = "retry"

	// Reject: the broker should not deliver it again, and nobody has it as a dead letter: terminate it where the
	// broker can, and tell somebody.
	Reject Action = "reject"

	// Leave: neither ack nor nak. Another owner has the key and will settle the message.
	Leave Action = "leave"
)

// A Decision says what to do with a delivery, and why.
type Decision struct {
	Action Action
	Delay  time.Duration // for RetryLater: not before

	// Keep, for RetryLater: the record has nothing to do with it, because the store does not answer or the guard is not
	// set up right. A transport keeps such a delivery and offers it again itself: giving it back would use up the
	// deliveries that the broker allows, and bring it back to the same trouble.
	Keep bool

	// ID is the message ID under which the delivery was guarded. Empty: none was found, or it cannot be used.
	ID string

	Err    error           // why it is not Ack; for Ack, the failure that was stored, if any
	Result oncemill.Result // for Ack and Reject, if there is an outcome
}
