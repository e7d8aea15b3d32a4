package pgwal

import (
	"context"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
)

// Setup makes the publication and the replication slot if they are missing. It may be repeated, and called by several
// processes at once. pgoutbox's tables must be there. From then on the server retains log until a relay has read it, so
// do not call it long before the first Run. It makes a lost slot again; pending rows are published all the same.
//
// It needs the right to create publications, the ownership of the table, and REPLICATION. Making the slot waits for
// transactions that are writing, as long as ctx allows.
//
// Errors: a *dedupstore.SetupError says what to do.
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

// alone runs fn while no other Setup or Drop runs. The lock ends with the connection, whatever happens.
func (r *Relay) alone(ctx context.Context, fn func(*pgx.Conn, facts) error) error {
	pooled, err := r.cfg.Pool.Acquire(ctx)
	if err != nil {
		return r.explain("connect", err)
	}
	c := pooled.Hijack()
	defer closeConn(ctx, c.PgConn())
	h := fnv.New64a()
	h.Write([]byte("oncemill/pgwal " + r.cfg.Slot))
	if _, err := c.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(h.Sum64())); err != nil {
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

// Drop removes the slot and the publication if they are there, so that the server stops retaining log for them. Rows
// stay in their table, for another relay. Stop the relays first: a slot in use is an error.
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
