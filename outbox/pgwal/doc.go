// Package pgwal is a relay that reads PostgreSQL's log instead of polling a table: what is committed is published at once,
// in the order of commits. It needs PostgreSQL 14 or newer with wal_level = logical, and a user with REPLICATION.
//
//	relay, err := pgwal.New(pgwal.Config{Pool: pool}, publisher) // publishes the rows of pgoutbox's table
//	err = relay.Setup(ctx)                                       // once: makes a publication and a replication slot
//	err = relay.Run(ctx)                                         // instead of an outbox.Relay
//
// With [Config.Prefix] it publishes what an [Emitter] wrote, which is in the log and in no table.
//
// # Guarantees
//
//   - At least once: what a transaction wrote is published if and only if it committed, until the publisher acknowledges it
//     or has refused it [Config.MaxAttempts] times. Then it is dead: its row says why, and an Emitter's message becomes a
//     dead row of [Config.Dead].
//   - The server is told that it may forget a part of the log only when everything in it is acknowledged and, for rows,
//     recorded in the table; or dead. While there is nothing to publish, the log is confirmed as it grows, so that an idle
//     outbox retains none.
//   - Order: messages with the same key are published in the order of their commits, each after the one before it was
//     acknowledged or is dead. A message that is refused holds up its own key only. With MaxInFlight 1, all messages that
//     need no second attempt are published in the order of commits. Rows that were delayed, requeued or replayed have the
//     place at which they become due again. Rows that are older than the slot are the exception: they may be published
//     after later rows of their key, which the log shows.
//   - No copy without a cause. Causes are a relay that dies, a connection of a relay that ends while another relay takes
//     over, an acknowledgement that never comes, and a result that cannot be recorded. For an Emitter there are more: a
//     server that forgets a confirmation in a crash; a relay that stops, however cleanly, while an earlier message waits
//     for its next attempt, for its key, or for the broker; and a connection that ends while more than 100,000 messages
//     are acknowledged but not confirmed. A relay that reads the log again asks the table what is settled already, and one
//     that lives on knows what was acknowledged. Rows are kept from being published twice by one rule: a row without a due
//     time is the log's, any other the table's.
//   - Any number of relays may run with one slot. One works, and another takes over within about a second of the end of its
//     connection. One that hangs as a whole is given up by the server after wal_sender_timeout (60 s by default).
//   - The server can be stopped while messages wait. It waits for those who read its log until they have confirmed all of it;
//     a relay leaves when it hears, by its next look, that no more connections are taken.
//   - A publisher that fails, hangs or panics delays what it was given together once, at most for [Config.PublishTimeout].
//     Then each of these messages is published by a call of its own, ever more slowly, up to 32 of them side by side. One
//     without an answer never dies. The server gets its answers meanwhile. What else is for a topic of which a message got no answer
//     in the last ten minutes, or two if it answers again, is published by other calls than the rest, so that no key waits for it with each of its messages; with
//     MaxInFlight 1 it is not, as that would change the order.
//   - Memory is bounded for rows: reading stops at [Config.MaxPending] messages, also in the middle of a transaction. For an
//     Emitter, what is acknowledged and not confirmed is remembered without its payload: some 120 bytes for each message
//     of a transaction that is not settled as a whole, which nothing bounds, and as much for those of up to 100,000
//     settled transactions behind such a one.
//   - A clean stop leaves no row that is published again. With an Emitter that is so only if nothing waits for its next
//     attempt: the log is confirmed up to the transaction of the first message that is neither acknowledged nor dead, and
//     everything acknowledged behind it is published again by the next relay.
//
// # What the log does not show
//
// The relay that has the slot looks at the table every [Config.PollInterval], too: for rows that are due at last, that were
// requeued or replayed, and, in every tenth look, for rows that are older than the slot or that a lost slot did not show. It
// also removes rows whose retention is over. So run no outbox.Relay on the same table: it would publish what the log shows
// once more. To go from one to the other, stop all relays of the one kind first; nothing is lost in between. To keep the
// order of keys as well, call Setup first, let the old relay publish what was written before that, then switch.
//
// Dead messages of an Emitter are different: nobody reads the table of Config.Dead. Run an outbox.Relay on it, or a second
// relay of this package, to publish what was requeued there.
//
// # What it does not guarantee
//
// Exactly one copy: consumers have to deduplicate. Order between different keys, and across a takeover for second copies.
// That the messages of a key wait for a dead one: they go on, also where pgoutbox's Config has no SkipDead.
//
// That a refused message delays nothing but its key: until it is dead, the slot retains the log since its transaction, and
// the messages behind it in its key count for MaxPending. If they reach it, everything waits.
//
// That a message without an answer holds up nothing but its key: it and those behind it in its key count for MaxPending, with or
// without a key. If they reach it, as 10,000 to a topic that does not exist do, everything waits, those to other topics
// too, and the relay warns. The slot retains the log since its transaction. Rows that
// are older than the slot wait, too, until the log is settled up to where they were first seen. A row without a key holds
// both up only until it got no answer five times and the broker acknowledged something else between the last two: then it
// is given a due time, and so is the table's. A row with a key holds them up until it is acknowledged or dead, and so does
// an Emitter's message.
//
// That the server's disk suffices. A slot retains log while no relay runs, while the broker is away, and for ever if
// nobody calls [Relay.Drop] for a slot that is not needed any more. The relay warns above [Config.WarnWAL]. The server's
// setting max_slot_wal_keep_size limits it, and takes the slot away, and so does idle_replication_slot_timeout (PostgreSQL 18)
// where no relay runs for so long: Run then returns a [SetupError]. Rows are still in their table, so Setup makes the slot
// again and they are published. An Emitter's messages are lost then. They are lost, too, where a standby takes over that does
// not have the slot, or pg_upgrade (before PostgreSQL 17) or a restore leaves it behind: Setup makes it, and warns.
// Where a loss cannot be borne, use the table.
//
// # Standbys
//
// Since PostgreSQL 17 standbys can copy slots, and Setup makes the slot so that they do: relays go on with the copy after a
// failover. The standby needs sync_replication_slots = on, hot_standby_feedback = on, primary_slot_name, and a dbname in
// primary_conninfo. Name its slot in the primary's synchronized_standby_slots, or messages are published that are not at the
// standby yet; while it is away nothing is published then, and the relay warns. Look before a planned failover whether the
// standby's pg_replication_slots has the slot, with synced and not temporary. A primary that comes back as a standby
// may still have the slot itself: drop it there, or nothing is copied. A slot that was made without this, as before
// PostgreSQL 17, gets it while no relay runs, by ALTER_REPLICATION_SLOT name (FAILOVER) on a connection with
// replication=database.
//
// With synchronous replication, messages may be published before the standby has their transaction, if synchronized_standby_slots
// does not name it. Where synchronous_standby_names has a *, whoever reads the log counts as a standby, and commits would wait until the broker has
// acknowledged: Setup and Run refuse it.
package pgwal
