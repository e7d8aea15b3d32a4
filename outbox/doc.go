// Package outbox publishes messages that were written in a database transaction. A row is there if and only if its
// transaction committed; a [Relay] publishes it through a [producer.Publisher]:
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
//   - At least once: a committed row is published until the publisher acknowledges it, whatever crashes, or refused
//     [Config.MaxAttempts] times. A refused row stays as dead, with the reason.
//   - One identity: every attempt carries the message ID that was written with the row, so others recognise copies.
//   - No copy without a cause: a relay died, an acknowledgement never came, or a lease ended before its batch was
//     settled. Any number of relays may share a store.
//   - Nothing is skipped: rows are found by their state, not by a position that moves past late commits.
//   - One bad message does not stop others. A refused message delays itself only. A message that makes the publisher
//     fail, hang or panic delays its batch once, for at most [Config.PublishTimeout]. One that the store cannot read
//     delays it for some attempts.
//   - A row whose attempt got no answer becomes a suspect, with its batch. Each suspect gets a call of its own, up to
//     32 at once, and never delays other rows. Suspects can delay each other: four that hang hold up the rest for
//     PublishTimeout.
//   - No answer means unknown, not failed. The row is tried again, ever more slowly, and never dies.
//   - A clean stop leaves no goroutine and no leased row.
//
// # What it does not guarantee
//
//   - Exactly one copy. Consumers deduplicate: see package consumer.
//   - Order. Relays work side by side, and retries come later. See Config.Ordered of pgoutbox and mysqloutbox.
//   - That the broker keeps what it acknowledged. So rows stay for [Config.Retention].
//   - That a refusal is one. If a publisher reports an unreachable broker as a definite failure, rows die in a long
//     outage.
//   - Progress while a publisher ignores its context, as many of Watermill's do. It holds up all new rows of its relay.
//     Other relays go on.
//
// [docs/outbox.md] says how to run one.
//
// [docs/outbox.md]: https://github.com/oncemill/oncemill/blob/main/docs/outbox.md
package outbox
