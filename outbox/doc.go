// Package outbox publishes messages that were written in a database transaction: the row is there if and only if the
// transaction committed, and a [Relay] publishes it through a [producer.Publisher].
//
//	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{}) // a Store
//	relay, err := outbox.NewRelay(box, publisher, outbox.Config{})
//	err = relay.Run(ctx)
//
// # States of a row
//
//	PENDING ──lease──► LEASED ──acknowledged──► PUBLISHED ──retention──► gone
//	   ▲                 │ └──refused for the last time──► DEAD ──requeue──► PENDING
//	   └─ refused, or no answer: later; given back, or lease expired: at once ─┘
//
// # Guarantees
//
//   - At least once: a committed row is published until the publisher acknowledges it, whatever crashes in between, or
//     until it is refused [Config.MaxAttempts] times. A refused row is kept as dead, with the reason.
//   - One identity: every attempt carries the message ID that was written with the row, so that the broker or the
//     consumer recognises copies.
//   - No copy without a cause: copies happen only if a relay dies, an acknowledgement never comes, or a lease ends
//     before its batch is settled. Any number of relays may share a store.
//   - Nothing is skipped: rows are found by what they are, never by a position that moves past late commits.
//   - One bad message does not stop others. One that is refused delays itself only. One that makes the publisher fail
//     as a whole, hang or panic delays the rest of its batch once, at most for [Config.PublishTimeout]. From then on it
//     is a suspect. So is one that the store cannot read, or not in time: the others go on after some attempts.
//   - Suspects are rows with an attempt that got no answer, their own or their batch's. Each is published by a call of
//     its own, up to 32 of them side by side, and never delays rows that are no suspects. Suspects can delay each
//     other: four that hang leave the other suspects waiting until PublishTimeout.
//   - An answer that never comes is unknown, not failed: such a row is tried again, ever more slowly, and never dies.
//   - A clean stop leaves no goroutine and no leased row.
//
// # What it does not guarantee
//
// Exactly one copy: consumers have to deduplicate (package consumer). Any order: rows are read in the order in which
// they are due, but relays work side by side and retries come later. That an acknowledged message survives in the
// broker: rows are kept for [Config.Retention] because brokers lose some.
//
// Whether a refusal is one is the publisher's word. A publisher that reports an unreachable broker as a definite
// failure, instead of an unknown one, makes rows die in a long outage. One that hangs and does not obey its context, as
// many of Watermill do not, holds up all new rows of its relay until it returns: the log says so, and other relays go
// on.
package outbox
