// Package pgwal is a relay that reads PostgreSQL's log instead of polling a table. It publishes commits at once, in
// their order. It needs PostgreSQL 14 or later, wal_level = logical, one each of max_replication_slots and
// max_wal_senders, and a user with REPLICATION.
//
//	relay, err := pgwal.New(pgwal.Config{Pool: pool}, publisher) // publishes the rows of pgoutbox's table
//	err = relay.Setup(ctx)                                       // once: makes a publication and a replication slot
//	err = relay.Run(ctx)                                         // instead of an outbox.Relay
//
// # Guarantees
//
//   - At least once: a row whose transaction committed is published until the publisher acknowledges it, or refuses it
//     [Config.MaxAttempts] times. Then it is dead, with the reason.
//   - The server keeps the log until all of it is acknowledged and recorded, or dead. An idle outbox keeps none.
//   - Order: messages of one key go out in the order of their commits. A refused one holds up its key only. See
//     [Config.MaxInFlight].
//   - No copy without a cause: a relay died, an acknowledgement or its record was lost, or a row showed over a second
//     after its commit.
//   - Any number of relays may share a slot. One works; another takes over within about a second of its end. The server
//     ends a relay that hangs after wal_sender_timeout (60 s).
//   - Memory is bounded: reading stops at 10,000 messages or 64 MiB of payloads. Up to 2,000 more are under way.
//   - A clean stop leaves no row that is published again, but for one whose commit still waits for a standby. Relays do
//     not keep a server from stopping.
//
// # What it does not guarantee
//
//   - Exactly one copy: consumers deduplicate. Order between keys, or of second copies after a takeover.
//   - The place of rows that were delayed, requeued or replayed, are older than the slot, or show late at a takeover.
//     They may follow later rows of their key.
//   - That a key waits for a dead message. It goes on, also without SkipDead.
//   - That messages without an answer delay only their key. They keep log and memory. When memory is full, everything
//     waits.
//   - That a row whose payload cannot be read within 10 s, or PublishTimeout if that is shorter, holds up no others. If
//     it was delayed, requeued or replayed, or is older than the slot, those behind it that are so, too, wait until it
//     is deleted.
//   - Disk space. A slot retains log while no relay runs or the broker is away, until you [Relay.Drop] it. The relay
//     warns above 1 GiB, or half of max_slot_wal_keep_size.
//
// Never run an outbox.Relay on the same table: see [Relay.Run].
//
// # Standbys
//
// Since PostgreSQL 17 standbys can copy the slot: see [Relay.Setup].
//
// [docs/outbox.md] compares both relays and says what to do about a lost slot.
//
// [docs/outbox.md]: https://github.com/oncemill/oncemill/blob/main/docs/outbox.md
package pgwal
