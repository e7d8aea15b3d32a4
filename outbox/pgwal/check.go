package pgwal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/rowsecurity"
)

// facts are what the server says about itself and what the relay needs there.
type facts struct {
	version       int
	standby       bool
	walLevel      string
	standbys      string        // synchronous_standby_names
	senderTimeout time.Duration // zero: none
	keepWAL       int64         // max_slot_wal_keep_size in MB; -1: no limit
	database      string

	table    uint32 // OID; 0: missing
	settings bool   // the table is an outbox
	debezium bool
	hidden   string // a table of which the user may not see all rows; empty: none

	publication, publishes, covers bool   // it is there, has inserts, has the table
	purpose                        string // its comment
	foreign                        string // another outbox table that it has; empty: none

	slot, active, ours bool // it is there, in use, of this database
	failover           bool // standbys may copy it; before PostgreSQL 17 none does
	twoPhase           bool // it shows prepared transactions before they are committed, or rolled back
	plugin, status     string
	reader             int // the server's process that sends its log; 0: none
	confirmed          pglogrepl.LSN
	retained           int64  // bytes of log
	away               string // a standby's slot that the server waits for, before it shows what is committed; empty: none
	end                pglogrepl.LSN
}

const (
	serverSQL = `
SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
	(SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
	(SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
	current_database(), coalesce(to_regclass($1)::oid, 0), to_regclass($2) IS NOT NULL,
	CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_insert_lsn() END, pg_is_in_recovery(),
	current_setting('synchronous_standby_names')`

	publicationSQL = `
SELECT p.pubinsert, p.puballtables OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = $2),
	coalesce(obj_description(p.oid, 'pg_publication'), ''), coalesce((
		SELECT n.nspname || '.' || c.relname
		FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE r.prpubid = p.oid AND ($3 OR c.oid <> $2)
			AND EXISTS (SELECT FROM pg_class s JOIN pg_attribute a ON a.attrelid = s.oid AND a.attname = 'debezium'
				WHERE s.relnamespace = c.relnamespace AND s.relname = c.relname || '_settings')
		LIMIT 1), '')
FROM pg_publication p WHERE p.pubname = $1`

	// two_phase came with PostgreSQL 14: an older server is refused by its version. failover came with 17, and with it
	// synchronized_standby_slots.
	slotSQL = `
SELECT s.active, coalesce(s.active_pid, 0), coalesce(s.database = current_database(), false), coalesce(s.plugin::text, ''),
	coalesce((to_jsonb(s) ->> 'two_phase')::boolean, false), coalesce(s.wal_status, ''),
	coalesce(s.confirmed_flush_lsn, '0/0'),
	CASE WHEN pg_is_in_recovery() THEN 0 ELSE coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint END,
	CASE WHEN (to_jsonb(s) ->> 'failover')::boolean THEN coalesce((
		SELECT n.name FROM pg_settings g, regexp_split_to_table(lower(g.setting), '[", ]+') AS n (name)
		WHERE g.name = 'synchronized_standby_slots' AND n.name <> ''
			AND NOT EXISTS (SELECT FROM pg_replication_slots p WHERE p.slot_name = n.name AND p.active) LIMIT 1), '') ELSE '' END,
	coalesce((to_jsonb(s) ->> 'failover')::boolean, false)
FROM pg_replication_slots s WHERE s.slot_name = $1`
)

// look asks the server. Nothing is judged.
func (r *Relay) look(ctx context.Context) (f facts, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	err = r.cfg.Pool.AcquireFunc(ctx, func(c conn) (err error) {
		f, err = r.lookOn(ctx, c)
		return err
	})
	if err != nil {
		return facts{}, r.explain("look at the server", err)
	}
	return f, nil
}

func (r *Relay) lookOn(ctx context.Context, c conn) (f facts, err error) {
	var timeout int64
	if err := c.QueryRow(ctx, serverSQL, r.cfg.located(""), r.cfg.located("_settings")).Scan(
		&f.version, &f.walLevel, &timeout, &f.keepWAL, &f.database, &f.table, &f.settings, &f.end, &f.standby, &f.standbys); err != nil {
		return f, err
	}
	f.senderTimeout = time.Duration(timeout) * time.Millisecond
	if f.settings {
		query := `SELECT debezium FROM ` + r.cfg.located("_settings")
		if err := optional(c.QueryRow(ctx, query).Scan(&f.debezium)); err != nil {
			return f, err
		}
		if f.hidden, err = rowsecurity.Hidden(ctx, c.Conn(), r.cfg.located(""), r.cfg.located("_lease"), r.cfg.located("_settings")); err != nil {
			return f, err
		}
	}
	err = c.QueryRow(ctx, publicationSQL, r.cfg.Publication, f.table, r.cfg.messages()).Scan(
		&f.publishes, &f.covers, &f.purpose, &f.foreign)
	if f.publication = err == nil; optional(err) != nil {
		return f, err
	}
	err = c.QueryRow(ctx, slotSQL, r.cfg.Slot).Scan(&f.active, &f.reader, &f.ours, &f.plugin, &f.twoPhase, &f.status, &f.confirmed, &f.retained, &f.away, &f.failover)
	f.slot = err == nil
	return f, optional(err)
}

func optional(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

const plugin = "pgoutput"

// serverProblem is what Setup cannot mend.
func (r *Relay) serverProblem(f facts) error {
	const oldest = 140000
	name := fmt.Sprintf("outbox table %q", r.cfg.Table)
	switch {
	case f.version < oldest:
		return &SetupError{"the server", fmt.Sprintf("has version number %d, want at least PostgreSQL 14", f.version), nil}
	case f.walLevel != "logical":
		return &SetupError{"the server", fmt.Sprintf("has wal_level %s: set wal_level = logical and restart it", f.walLevel), nil}
	case strings.Contains(f.standbys, "*"): // who reads the log counts as a standby
		return &SetupError{"the server", fmt.Sprintf("has synchronous_standby_names = '%s', so that all commits would wait for what the broker acknowledges: name the standbys", f.standbys), nil}
	case f.table == 0 || !f.settings:
		return &SetupError{name, "is missing where the connection looks for it: call pgoutbox's Migrate, set Config.Schema, or grant the user USAGE on its schema", nil}
	case f.hidden != "":
		return &SetupError{"outbox table " + f.hidden, rowsecurity.Advice, nil}
	case f.slot && !f.ours:
		return &SetupError{fmt.Sprintf("replication slot %q", r.cfg.Slot), fmt.Sprintf("is not one of database %q, and names are shared by all: set Config.Slot", f.database), nil}
	case f.slot && f.plugin != plugin:
		return &SetupError{fmt.Sprintf("replication slot %q", r.cfg.Slot), fmt.Sprintf("has plugin %q, want %s: set Config.Slot, or drop the slot and call Setup", f.plugin, plugin), nil}
	case f.twoPhase:
		return &SetupError{fmt.Sprintf("replication slot %q", r.cfg.Slot), "has two_phase, which shows prepared transactions before they are committed, or rolled back: set Config.Slot, or drop the slot and call Setup", nil}
	}
	return r.strangers(f)
}

// purpose is what the comment of a publication begins with whose slot is for messages of an Emitter: nothing else on the
// server says whose they are.
const purpose = "oncemill/pgwal: "

// strangers says that the slot is for others. A relay confirms all that the log shows and publishes its own part only, so
// two that share a slot would confirm each other's messages. The slot itself cannot be asked; the publication beside it
// can.
func (r *Relay) strangers(f facts) error {
	if !f.publication || r.cfg.Publication != r.cfg.Slot {
		return nil
	}
	prefix, emitted := strings.CutPrefix(f.purpose, purpose)
	var others string
	switch {
	case emitted && prefix != r.cfg.Prefix:
		others = fmt.Sprintf("messages of an Emitter with prefix %q", prefix)
	case f.foreign != "" && !emitted && (r.cfg.messages() || !f.covers):
		others = fmt.Sprintf("outbox table %q", f.foreign)
	default:
		return nil
	}
	return &SetupError{fmt.Sprintf("replication slot %q", r.cfg.Slot), "is for " + others + ", as its publication says: set Config.Slot to a name of your own", nil}
}

// check says what does not fit, so that reading the log would be useless.
func (r *Relay) check(ctx context.Context) (facts, error) {
	f, err := r.look(ctx)
	if err != nil {
		return facts{}, err
	}
	if f.standby { // while another server takes over, and what is missing here may be there
		r.cfg.Pool.Reset() // its connections would stay where they are, also when their name leads to the primary
		return facts{}, errors.New("pgwal: the server is a standby: Config.Pool must lead to the primary, with target_session_attrs=read-write in its URL to no other server")
	}
	if err := r.serverProblem(f); err != nil {
		return facts{}, err
	}
	slot, publication := fmt.Sprintf("replication slot %q", r.cfg.Slot), fmt.Sprintf("publication %q", r.cfg.Publication)
	switch {
	case !f.publication:
		return facts{}, &SetupError{publication, "is missing: call Setup", nil}
	case !f.publishes:
		return facts{}, &SetupError{publication, "does not publish inserts: ALTER PUBLICATION … SET (publish = 'insert')", nil}
	case !r.cfg.messages() && !f.covers:
		return facts{}, &SetupError{publication, fmt.Sprintf("does not have outbox table %q: call Setup", r.cfg.Table), nil}
	case !f.slot:
		return facts{}, &SetupError{slot, "is missing: call Setup", nil}
	case f.status == lost:
		return facts{}, r.lostError()
	}
	return f, nil
}

// lost is the wal_status of a slot that the server invalidated.
const lost = "lost"

func (r *Relay) lostError() error {
	what := "Setup makes it again, and rows that are pending are found in the table"
	if r.cfg.messages() {
		what = "call Drop and Setup to go on without them"
	}
	problem := "is lost: it retained more log than max_slot_wal_keep_size allows, or, since PostgreSQL 18, no relay used it for " +
		"idle_replication_slot_timeout; what was not published by then is gone from the log; "
	return &SetupError{fmt.Sprintf("replication slot %q", r.cfg.Slot), problem + what, nil}
}
