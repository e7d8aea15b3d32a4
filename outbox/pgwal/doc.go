// Package pgwal is a relay that reads PostgreSQL's log instead of polling a table: what is committed is published at
// once, in the order of commits. It needs PostgreSQL 14 or newer with wal_level = logical, and a user with REPLICATION.
//
//	relay, err := pgwal.New(pgwal.Config{Pool: pool}, publisher) // publishes the rows of pgoutbox's table
//	err = relay.Setup(ctx)                                       // once: makes a publication and a replication slot
//	err = relay.Run(ctx)                                         // instead of an outbox.Relay
//
// # Guarantees
//
//   - At least once: a row is published if and only if its transaction committed, until the publisher acknowledges it
//     or has refused it [Config.MaxAttempts] times. Then it is dead, and says why.
//   - The server may forget a part of the log only when everything in it is acknowledged and recorded in the table, or
//     dead. While there is nothing to publish, the log is confirmed as it grows: an idle outbox retains none.
//   - Order: messages with the same key are published in the order of their commits, each after the one before it was
//     acknowledged or is dead. A message that is refused holds up its own key only. With MaxInFlight 1, all messages
//     that need no second attempt are published in the order of commits. Rows that were delayed, requeued or replayed
//     have the place at which they become due again. Rows that are older than the slot, or that the server does not
//     show yet when a relay takes over, may be published after later ones of their key.
//   - No copy without a cause. Causes are a relay that dies, an acknowledgement that never comes, a result that cannot
//     be recorded before the connection ends, and a row that the server does not show within a second of its commit in
//     the log. A relay that reads the log again asks the table what is settled. A row without a due time is the log's,
//     any other the table's: no row is published from both.
//   - Any number of relays may run with one slot. One works, and another takes over within about a second of the end of
//     its connection. The server gives up one that hangs as a whole after wal_sender_timeout (60 s by default).
//   - The server can be stopped while messages wait: a relay leaves when it hears, by its next look, that no more
//     connections are taken.
//   - A publisher that fails, hangs or panics delays what it was given together once, at most for
//     [Config.PublishTimeout]. Then each of these messages is published by a call of its own, ever more slowly, up to
//     32 of them side by side. One without an answer never dies. Messages to a topic that gave no answer in the last
//     ten minutes, or two if it answers again, are published by calls of their own, so that no other key waits for each
//     of them; with MaxInFlight 1 they are not, as that would change the order.
//   - Memory is bounded: reading stops at 10,000 messages or 64 MiB of payloads, also in the middle of a transaction.
//     Up to 2,000 messages more are on their way.
//   - A clean stop leaves no row that is published again.
//
// # What the log does not show
//
// The relay that has the slot looks at the table every second, too: for rows that are due at last, that were requeued
// or replayed, and, in every tenth look, for rows that are older than the slot or that a lost slot did not show. It
// also removes rows whose retention is over. So run no outbox.Relay on the same table: it would publish what the log
// shows once more. To go from one to the other, stop all relays of the one kind first; nothing is lost in between. To
// keep the order of keys as well, call Setup first, let the old relay publish what was written before that, then
// switch.
//
// # What it does not guarantee
//
// Exactly one copy: consumers have to deduplicate. Order between different keys, and across a takeover for second
// copies. That the messages of a key wait for a dead one: they go on, also where pgoutbox's Config has no SkipDead.
//
// That a message that waits delays nothing but its key. Until it is acknowledged or dead, the slot retains the log
// since its transaction, rows that are older than the slot wait, and the message takes room in memory, as those behind
// it in its key do. When the memory is full, as with 10,000 messages to a topic that does not exist, everything waits,
// and the relay warns. A row without a key leaves the memory and the log when it got no answer five times and the
// broker acknowledged something else between the last two: it gets a due time, and so is the table's.
//
// That the server's disk suffices. A slot retains log while no relay runs, while the broker is away, and for ever if
// nobody calls [Relay.Drop] for a slot that is not needed any more. The relay warns above 1 GiB, or half of
// max_slot_wal_keep_size. That setting limits the log, and takes the slot away, as does idle_replication_slot_timeout
// (PostgreSQL 18) where no relay runs for so long: Run then returns a [SetupError]. Rows are still in their table:
// Setup makes the slot again and they are published. It is so, too, where a standby takes over that does not have the
// slot, or pg_upgrade (before PostgreSQL 17) or a restore leaves it behind.
//
// # Standbys
//
// Since PostgreSQL 17 standbys can copy slots, and Setup makes the slot so that they do: relays go on with the copy
// after a failover. The standby needs sync_replication_slots = on, hot_standby_feedback = on, primary_slot_name, and a
// dbname in primary_conninfo. Name its slot in the primary's synchronized_standby_slots, or messages are published that
// are not at the standby yet; while it is away nothing is published, and the server's log says so. Look before a
// planned failover whether the standby's pg_replication_slots has the slot, with synced and not temporary. A primary
// that comes back as a standby may still have the slot itself: drop it there, or nothing is copied. A slot that was
// made without this, as before PostgreSQL 17, gets it while no relay runs, by ALTER_REPLICATION_SLOT name (FAILOVER) on
// a connection with replication=database.
//
// With synchronous replication, messages may be published before the standby has their transaction, if
// synchronized_standby_slots does not name it. Where synchronous_standby_names has a *, the relay would count as a
// standby, and commits would wait until the broker has acknowledged: Setup and Run refuse it.
package pgwal
