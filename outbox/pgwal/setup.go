package pgwal

import (
	"context"
	"fmt"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type conn = *pgxpool.Conn

// Setup makes the publication and the replication slot where they are missing. It may be repeated, and may be called by
// several processes at once. pgoutbox's tables must be there; with Prefix it makes them by Config.Dead. From then on the
// server retains log until a relay has read it: do not call it long before the first Run.
//
// A slot that was lost is made again for a table, whose pending rows are published all the same. For messages of an
// Emitter it is an error, for they are lost. So may be those of a slot that is missing although its publication is there, as after a
// failover: Setup makes it, and warns.
//
// It needs the right to create publications, the ownership of the table, and REPLICATION. It waits for transactions that
// are writing when it makes the slot, as long as ctx allows.
//
// Errors: a *SetupError says what to do.
func (r *Relay) Setup(ctx context.Context) error {
	if r.cfg.messages() {
		if err := r.cfg.Dead.Migrate(ctx); err != nil {
			return fmt.Errorf("pgwal: set up dead messages: %w", err)
		}
	}
	return r.alone(ctx, func(c conn) error {
		f, err := r.lookOn(ctx, c)
		if err != nil {
			return r.explain("look at the server", err)
		}
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
func (r *Relay) alone(ctx context.Context, fn func(conn) error) (err error) {
	c, err := r.cfg.Pool.Acquire(ctx)
	if err != nil {
		return r.explain("connect", err)
	}
	defer c.Release()
	h := fnv.New64a()
	h.Write([]byte("oncemill/pgwal " + r.cfg.Slot))
	if _, err := c.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(h.Sum64())); err != nil {
		return r.explain("wait for others", err)
	}
	defer func() {
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.StoreTimeout)
		defer cancel()
		var unlocked bool
		if failed := c.QueryRow(detached, `SELECT pg_advisory_unlock($1)`, int64(h.Sum64())).Scan(&unlocked); failed != nil {
			_ = c.Conn().Close(detached) // the lock ends with the connection all the same
		} else if !unlocked && err == nil {
			err = &SetupError{"Config.Pool", "leads to a pooler whose clients share connections, as PgBouncer's: one of them keeps a lock, and Setup and Drop wait until the pooler closes it; connect to the primary itself", nil}
		}
	}()
	return fn(c)
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

func (r *Relay) setupPublication(ctx context.Context, c conn, f facts) error {
	name, table := quoted(r.cfg.Publication), r.cfg.located("")
	var statement string
	switch {
	case !f.publication && r.cfg.messages():
		statement = `CREATE PUBLICATION ` + name + ` WITH (publish = 'insert')`
	case !f.publication:
		statement = `CREATE PUBLICATION ` + name + ` FOR TABLE ` + table + ` WITH (publish = 'insert')`
	case !f.publishes:
		return &SetupError{fmt.Sprintf("publication %q", r.cfg.Publication), "does not publish inserts: ALTER PUBLICATION … SET (publish = 'insert')", nil}
	case !f.covers && !r.cfg.messages():
		statement = `ALTER PUBLICATION ` + name + ` ADD TABLE ` + table
	}
	if statement != "" {
		if _, err := c.Exec(ctx, statement); err != nil && !hasCode(err, codeDuplicateObject) {
			return r.explain("make the publication", err)
		}
	}
	return r.setupPurpose(ctx, c, f)
}

// setupPurpose says whose the slot is, where nobody has said anything yet. Another's publication may stay without.
func (r *Relay) setupPurpose(ctx context.Context, c conn, f facts) error {
	if !r.cfg.messages() || r.cfg.Publication != r.cfg.Slot || f.purpose != "" {
		return nil
	}
	_, err := c.Exec(ctx, `COMMENT ON PUBLICATION `+quoted(r.cfg.Publication)+` IS '`+purpose+r.cfg.Prefix+`'`) // a prefix needs no escaping
	if err != nil && !hasCode(err, codeNoPrivilege) {
		return r.explain("say whose the slot is", err)
	}
	return nil
}

// withFailover is the first version whose standbys copy slots, those that are made for it.
const withFailover = 170000

func (r *Relay) setupSlot(ctx context.Context, c conn, f facts) error {
	if f.slot && f.status == lost {
		if r.cfg.messages() {
			return r.lostError()
		}
		if _, err := c.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, r.cfg.Slot); err != nil {
			return r.explain("drop the lost slot", err)
		}
		r.log.WarnContext(ctx, "pgwal: the replication slot was lost and is made again", "slot", r.cfg.Slot)
		f.slot = false
	}
	if f.slot {
		if f.version >= withFailover && !f.failover {
			r.log.InfoContext(ctx, "pgwal: the replication slot is there, and was made so that no standby copies it; where one should, stop the relays and call ALTER_REPLICATION_SLOT … (FAILOVER) on a connection with replication=database",
				"slot", r.cfg.Slot)
		}
		return nil
	}
	create := `SELECT pg_create_logical_replication_slot($1, $2)`
	if f.version >= withFailover {
		create = `SELECT pg_create_logical_replication_slot($1, $2, failover => true)`
	}
	_, err := c.Exec(ctx, create, r.cfg.Slot, plugin)
	if hasCode(err, codeTooManySlots) {
		return &SetupError{"the server", "has no replication slot left: raise max_replication_slots, or drop slots that nobody uses", err}
	}
	if err != nil && !hasCode(err, codeDuplicateObject) {
		return r.explain("make the replication slot", err)
	}
	if err == nil && f.publication && r.cfg.messages() { // Drop removes both
		r.log.WarnContext(ctx, "pgwal: the publication was there and the replication slot was not, as after a failover, a restore or pg_upgrade: unless an earlier Setup was cut off, or the publication made by hand, messages of the Emitter that were not published by then, and those written without a slot, are lost",
			"slot", r.cfg.Slot)
	}
	return nil
}

// Drop removes the slot and the publication, if they are there, so that the server retains no log for them any more.
// Messages of an Emitter that are not published by then never will be; rows stay in their table, for another relay. Stop
// the relays before: a slot in use is an error.
func (r *Relay) Drop(ctx context.Context) error {
	return r.alone(ctx, func(c conn) error {
		f, err := r.lookOn(ctx, c)
		if err != nil {
			return r.explain("look at the server", err)
		}
		if err := r.strangers(f); err != nil {
			return err
		}
		_, err = c.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND database = current_database()`, r.cfg.Slot)
		if hasCode(err, codeInUse) {
			return &SetupError{fmt.Sprintf("replication slot %q", r.cfg.Slot), "is in use: stop the relays first", err}
		}
		if err != nil {
			return r.explain("drop the replication slot", err)
		}
		if _, err := c.Exec(ctx, `DROP PUBLICATION IF EXISTS `+quoted(r.cfg.Publication)); err != nil {
			return r.explain("drop the publication", err)
		}
		return nil
	})
}
