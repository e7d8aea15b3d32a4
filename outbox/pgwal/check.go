package pgwal

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/rowsecurity"
)

// facts are what the server says about itself and about what the relay needs.
type facts struct {
	version  int
	standby  bool
	walLevel string
	standbys string // synchronous_standby_names
	keepWAL  int64  // max_slot_wal_keep_size in MB; -1: no limit
	database string

	table    uint32 // OID; 0: missing
	settings bool   // the table is an outbox
	hidden   string // a table of which the user may not see all rows; empty: none

	publication, publishes, covers bool   // it is there, has inserts, has the table
	foreign                        string // another outbox table that it has; empty: none

	slot, active, ours bool // it is there, in use, of this database
	twoPhase           bool // it shows prepared transactions before they are committed, or rolled back
	plugin, status     string
	reader             int // the server's process that sends its log; 0: none
	confirmed          pglogrepl.LSN
	retained           int64 // bytes of log
	end                pglogrepl.LSN
}

// lookSQL looks at the server, the publication and the slot. two_phase came with PostgreSQL 14: an older server is
// refused by its version.
const lookSQL = `
SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
	(SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
	current_database(), n.standby, current_setting('synchronous_standby_names'),
	CASE WHEN n.standby THEN '0/0' ELSE pg_current_wal_insert_lsn() END,
	coalesce(n.relation, 0), to_regclass($2) IS NOT NULL,
	p.oid IS NOT NULL, coalesce(p.pubinsert, false),
	coalesce(p.puballtables, false) OR EXISTS (SELECT FROM pg_publication_rel r
		WHERE r.prpubid = p.oid AND r.prrelid = n.relation),
	coalesce((
		SELECT m.nspname || '.' || c.relname
		FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace m ON m.oid = c.relnamespace
		WHERE r.prpubid = p.oid AND c.oid <> coalesce(n.relation, 0)
			AND EXISTS (SELECT FROM pg_class s JOIN pg_attribute a ON a.attrelid = s.oid AND a.attname = 'ordered'
				WHERE s.relnamespace = c.relnamespace AND s.relname = c.relname || '_settings')
		LIMIT 1), ''),
	s.slot_name IS NOT NULL, coalesce(s.active, false), coalesce(s.active_pid, 0),
	coalesce(s.database = current_database(), false), coalesce(s.plugin::text, ''),
	coalesce((to_jsonb(s) ->> 'two_phase')::boolean, false), coalesce(s.wal_status, ''),
	coalesce(s.confirmed_flush_lsn, '0/0'),
	CASE WHEN n.standby THEN 0
		ELSE coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint END
FROM (SELECT to_regclass($1)::oid AS relation, pg_is_in_recovery() AS standby) AS n
	LEFT JOIN pg_publication p ON p.pubname = $3
	LEFT JOIN pg_replication_slots s ON s.slot_name = $3`

// look asks the server. Nothing is judged.
func (r *Relay) look(ctx context.Context) (f facts, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.limits.storeTimeout)
	defer cancel()
	c, err := r.cfg.Pool.Acquire(ctx)
	if err != nil {
		return facts{}, r.explain("connect", err)
	}
	defer c.Release()
	return r.lookOn(ctx, c.Conn())
}

func (r *Relay) lookOn(ctx context.Context, c *pgx.Conn) (f facts, err error) {
	table, settings := r.cfg.located(""), r.cfg.located("_settings")
	err = c.QueryRow(ctx, lookSQL, table, settings, r.cfg.Slot).Scan(
		&f.version, &f.walLevel, &f.keepWAL, &f.database, &f.standby, &f.standbys, &f.end,
		&f.table, &f.settings, &f.publication, &f.publishes, &f.covers, &f.foreign,
		&f.slot, &f.active, &f.reader, &f.ours, &f.plugin, &f.twoPhase, &f.status, &f.confirmed, &f.retained)
	if err == nil && f.settings {
		f.hidden, err = rowsecurity.Hidden(ctx, c, table, r.cfg.located("_lease"), settings)
	}
	if err != nil {
		return facts{}, r.explain("look at the server", err)
	}
	return f, nil
}

const plugin = "pgoutput"

// serverProblem is what Setup cannot mend.
func (r *Relay) serverProblem(f facts) error {
	const oldest = 140000
	switch {
	case f.version < oldest:
		return unfit("the server", fmt.Sprintf("has version number %d, want at least PostgreSQL 14", f.version), nil)
	case f.walLevel != "logical":
		return unfit("the server", "has wal_level "+f.walLevel+": set wal_level = logical and restart it", nil)
	case strings.Contains(f.standbys, "*"): // the reader of the log counts as a standby
		return unfit("the server", "has synchronous_standby_names = '"+f.standbys+
			"', so that all commits would wait for what the broker acknowledges: name the standbys", nil)
	case f.table == 0 || !f.settings:
		return unfit(fmt.Sprintf("outbox table %q", r.cfg.Table), "is missing where the connection looks for it: "+
			"call pgoutbox's Migrate, set Config.Schema, or grant the user USAGE on its schema", nil)
	case f.hidden != "":
		return unfit("outbox table "+f.hidden, rowsecurity.Advice, nil)
	case f.slot && !f.ours:
		return r.slotError("is not one of database %q, and names are shared by all: set Config.Slot", f.database)
	case f.slot && f.plugin != plugin:
		return r.slotError("has plugin %q, want %s: set Config.Slot, or drop the slot and call Setup", f.plugin, plugin)
	case f.twoPhase:
		return r.slotError("has two_phase, which shows prepared transactions before they are committed, or rolled " +
			"back: set Config.Slot, or drop the slot and call Setup")
	case f.publication && !f.publishes:
		return r.publicationError("does not publish inserts: ALTER PUBLICATION … SET (publish = 'insert')")
	}
	return r.strangers(f)
}

// strangers says that the slot serves another outbox. A relay confirms everything in the log but publishes only its own
// part, so two outboxes with one slot would confirm each other's messages. The slot does not say whose it is; its
// publication does.
func (r *Relay) strangers(f facts) error {
	if f.publication && f.foreign != "" && !f.covers {
		return r.slotError("is for outbox table %q, as its publication says: set Config.Slot to a name of your own",
			f.foreign)
	}
	return nil
}

func (r *Relay) slotError(format string, args ...any) error {
	return unfit(fmt.Sprintf("replication slot %q", r.cfg.Slot), fmt.Sprintf(format, args...), nil)
}

func (r *Relay) publicationError(format string, args ...any) error {
	return unfit(fmt.Sprintf("publication %q", r.cfg.Slot), fmt.Sprintf(format, args...), nil)
}

// check says why reading the log would be useless.
func (r *Relay) check(ctx context.Context) (facts, error) {
	f, err := r.look(ctx)
	if err != nil {
		return facts{}, err
	}
	if f.standby { // while another server takes over, and what is missing here may be there
		r.cfg.Pool.Reset() // its connections would stay where they are, also when their name leads to the primary
		return facts{}, errors.New("pgwal: the server is a standby: Config.Pool must lead to the primary, " +
			"with target_session_attrs=read-write in its URL to no other server")
	}
	if err := r.serverProblem(f); err != nil {
		return facts{}, err
	}
	switch {
	case !f.publication:
		err = r.publicationError("is missing: call Setup")
	case !f.covers:
		err = r.publicationError("does not have outbox table %q: call Setup", r.cfg.Table)
	case !f.slot:
		err = r.slotError("is missing: call Setup")
	case f.status == lost:
		err = r.slotError("is lost: it retained more log than max_slot_wal_keep_size allows, or, " +
			"since PostgreSQL 18, no relay used it for idle_replication_slot_timeout; " +
			"Setup makes it again, and rows that are pending are found in the table")
	}
	return f, err
}

// lost is the wal_status of a slot that the server invalidated.
const lost = "lost"

// watch looks at the slot and the publication. It returns an error if the log must be read again. Either nobody or
// another relay reads the slot there: the pool's name has moved, and this log comes from the old server, which lives
// on. Or the outbox table was made again, and the publication shows the new one.
func (r *Relay) watch(ctx context.Context, began facts) error {
	f, err := r.look(ctx)
	if hasCode(err, codeCannotConnectNow) { // it would wait for a relay that has not confirmed everything
		return err
	}
	if err != nil {
		return nil //nolint:nilerr // the next look, or the connection, will say so
	}
	r.warnOfLog(ctx, f)
	if f.standby { // one that takes over says so then; until then the primary's log is the one
		return nil
	}
	shown := f.covers && f.publishes
	if f.table != 0 && !shown {
		r.warn(ctx, "pgwal: the publication does not show new rows of the outbox table any more: they are found in "+
			"the table, late; call Setup, or ALTER PUBLICATION … SET (publish = 'insert')",
			"publication", r.cfg.Slot, "table", r.cfg.Table)
	}
	if !f.active || f.reader != began.reader || f.table != 0 && shown && f.table != began.table {
		r.cfg.Pool.Reset() // a connection that it has to the old server would have the relay leave the new one again
		return errors.New("pgwal: Config.Pool leads to another server than the one whose log was read, " +
			"or the outbox table was made anew")
	}
	return nil
}

// warnOfLog says when the slot makes the server keep too much.
func (r *Relay) warnOfLog(ctx context.Context, f facts) {
	most := r.limits.warnWAL
	if f.keepWAL > 0 {
		most = min(most, f.keepWAL<<20/2)
	}
	if f.retained >= most {
		r.warn(ctx, "pgwal: the slot makes the server keep much log", "slot", r.cfg.Slot,
			"bytes", f.retained, "wal_status", f.status, "max_slot_wal_keep_size_mb", f.keepWAL)
	}
}
