package pgwal

import (
	"context"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
)

// Setup makes the publication and the replication slot where they are missing. You may repeat it, and several processes
// may call it at once. pgoutbox's tables must be there. From then on the server retains log until a relay has read it,
// so do not call Setup long before the first Run. If a slot was lost, Setup makes it again, and pending rows are
// published all the same.
//
// Setup needs the right to create publications, the ownership of the table, and REPLICATION. It waits for transactions
// that are writing, as long as ctx allows. Errors: a *dedupstore.SetupError says what to do.
//
// A slot is lost when max_slot_wal_keep_size or idle_replication_slot_timeout (PostgreSQL 18) takes it away. It is left
// behind by a failover to a standby without it, by a restore, and by pg_upgrade before PostgreSQL 17. Run then returns
// a *dedupstore.SetupError; the rows are still in their table.
//
// # What standbys need
//
// Since PostgreSQL 17 Setup makes a slot that standbys can copy, and relays go on with the copy after a failover. The
// standby needs sync_replication_slots = on, hot_standby_feedback = on, primary_slot_name, and a dbname in
// primary_conninfo.
//
//   - Name its slot in the primary's synchronized_standby_slots. Otherwise messages are published that the standby does
//     not have yet, also under synchronous replication. While that standby is away, nothing is published, and the
//     server's log says so.
//   - Before a planned failover, check that the standby's pg_replication_slots shows the slot as synced and not
//     temporary.
//   - A former primary that returns as a standby may still have the slot itself. Drop it there, or nothing is copied.
//   - A slot from before PostgreSQL 17 becomes such a slot while no relay runs, by ALTER_REPLICATION_SLOT name
//     (FAILOVER) on a connection with replication=database.
//   - With a * in synchronous_standby_names the relay would count as a standby, and commits would wait for the broker.
//     Setup and Run refuse that.
func (r *Relay) Setup(ctx context.Context) error {
	return r.alone(ctx, func(c *pgx.Conn, f facts) error {
		if err := r.serverProblem(f); err != nil {
			return err
		}
		if err := r.setupPublication(ctx, c, f); err != nil {
			return err
		}
		return r.setupSlot(ctx, c, f)
	})
}

// alone runs fn while no other Setup or Drop runs. The lock ends with the connection, whatever happens: the server ends
// it soon if this host has vanished.
func (r *Relay) alone(ctx context.Context, fn func(*pgx.Conn, facts) error) error {
	pooled, err := r.cfg.Pool.Acquire(ctx)
	if err != nil {
		return r.explain("connect", err)
	}
	c := pooled.Hijack()
	defer closeConn(ctx, c.PgConn())
	h := fnv.New64a()
	h.Write([]byte("oncemill/pgwal " + r.cfg.Slot))
	if _, err := c.Exec(ctx, `SELECT set_config('idle_session_timeout', '20s', false), pg_advisory_lock($1)`,
		int64(h.Sum64())); err != nil {
		return r.explain("wait for others", err)
	}
	f, err := r.lookOn(ctx, c)
	if err != nil {
		return err
	}
	return fn(c, f)
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

func (r *Relay) setupPublication(ctx context.Context, c *pgx.Conn, f facts) error {
	name, table := quoted(r.cfg.Slot), r.cfg.located("")
	var statement string
	switch {
	case !f.publication:
		statement = `CREATE PUBLICATION ` + name + ` FOR TABLE ` + table + ` WITH (publish = 'insert')`
	case !f.covers:
		statement = `ALTER PUBLICATION ` + name + ` ADD TABLE ` + table
	default:
		return nil
	}
	if _, err := c.Exec(ctx, statement); err != nil && !hasCode(err, codeDuplicateObject) {
		return r.explain("make the publication", err)
	}
	return nil
}

func (r *Relay) setupSlot(ctx context.Context, c *pgx.Conn, f facts) error {
	if f.slot && f.status != lost {
		return nil
	}
	if f.slot {
		if _, err := c.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, r.cfg.Slot); err != nil {
			return r.explain("drop the lost slot", err)
		}
		r.log.WarnContext(ctx, "pgwal: the replication slot was lost and is made again", "slot", r.cfg.Slot)
	}
	create := `SELECT pg_create_logical_replication_slot($1, $2)`
	if f.version >= 170000 { // standbys may copy it
		create = `SELECT pg_create_logical_replication_slot($1, $2, failover => true)`
	}
	_, err := c.Exec(ctx, create, r.cfg.Slot, plugin)
	if err != nil && !hasCode(err, codeDuplicateObject) {
		return r.explain("make the replication slot", err)
	}
	return nil
}

// Drop removes the slot and the publication, if they are there, so that the server retains no log for them any more.
// Rows stay in their table, for another relay. Stop the relays first: a slot in use is an error.
func (r *Relay) Drop(ctx context.Context) error {
	return r.alone(ctx, func(c *pgx.Conn, f facts) error {
		if err := r.strangers(f); err != nil {
			return err
		}
		_, err := c.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
			WHERE slot_name = $1 AND database = current_database()`, r.cfg.Slot)
		if hasCode(err, codeInUse) {
			return r.slotError("is in use: stop the relays first")
		}
		if err != nil {
			return r.explain("drop the replication slot", err)
		}
		if _, err := c.Exec(ctx, `DROP PUBLICATION IF EXISTS `+quoted(r.cfg.Slot)); err != nil {
			return r.explain("drop the publication", err)
		}
		return nil
	})
}
