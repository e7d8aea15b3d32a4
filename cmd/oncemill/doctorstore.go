package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/internal/rowsecurity"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// lookAtStore looks at the server of the store.
func (d *doctor) lookAtStore(ctx context.Context) error {
	const what = "store"
	store, err := d.inspector(ctx)
	if err != nil {
		return err
	}
	report, found, err := operate.CheckStore(ctx, what, store)
	if err != nil {
		return err
	}
	if !d.deeper {
		d.Found = append(d.Found, found...)
	}
	if report.Store == "" { // it is refused
		d.Looked = append(d.Looked, what)
	} else {
		d.Looked = append(d.Looked,
			fmt.Sprintf("%s (%s %s: %s)", what, report.Store, report.Version, report.Durability))
	}
	at, _, err := split(d.settings.Store, "prefix", "table", "schema")
	if err != nil {
		return err
	}
	switch report.Store {
	case "redis":
		return d.lookAtRedis(ctx, what, at, store)
	case "postgresql":
		pool, err := d.pool(ctx, at)
		if err != nil {
			return err
		}
		return d.postgresClock(ctx, what, pool)
	case "nats":
		return d.natsClock(ctx, what, at)
	case "mysql", "mariadb":
		db, err := d.mysql(at)
		if err != nil {
			return err
		}
		before := time.Now()
		var now int64
		if err := db.QueryRowContext(ctx, "SELECT "+string(sqlstore.MySQLNow)).Scan(&now); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		d.clock(what, time.UnixMicro(now), before, time.Now())
	}
	return nil
}

// natsClock compares the clock of the server that leads the bucket or stream.
func (d *doctor) natsClock(ctx context.Context, what string, at *url.URL) error {
	js, config, err := d.kv(at)
	if err != nil {
		return err
	}
	before := time.Now()
	stream, err := js.Stream(ctx, cmp.Or(config.Stream, "KV_"+cmp.Or(config.Bucket, "oncemill")))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	d.clock(what, stream.CachedInfo().TimeStamp, before, time.Now())
	return nil
}

// lookAtRedis looks at what the store's Check does not: clocks, and memory for a window.
func (d *doctor) lookAtRedis(ctx context.Context, what string, at *url.URL, store dedupstore.Inspector) error {
	rdb, err := connect(at)
	if err != nil {
		return err
	}
	defer rdb.Close() //nolint:errcheck // it was only asked
	single, ok := rdb.(*redis.Client)
	if !ok {
		return nil // a cluster has many clocks and limits
	}
	before := time.Now()
	now, err := single.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	d.clock(what, now, before, time.Now())

	page, err := store.List(ctx, dedupstore.Filter{}, "")
	info, noInfo := single.Info(ctx, "memory").Result()
	if err != nil || noInfo != nil {
		return ctx.Err() // programs need no right to list records: then it cannot be estimated
	}
	m := memory{dataset: number(info, "used_memory_dataset"), limit: number(info, "maxmemory"), keys: page.Total}
	m.limited = m.limit > 0
	if !m.limited {
		m.limit = number(info, "total_system_memory")
	}
	for i := range page.Records {
		m.sample = append(m.sample, now.Sub(page.Records[i].First))
	}
	m.judge(&d.Report, what, d.policy.Window)
	return nil
}

// number reads a number of Redis's INFO; 0: it is not told.
func number(info, name string) int64 {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			n, _ := strconv.ParseInt(value, 10, 64)
			return n
		}
	}
	return 0
}

// A memory is that of a Redis server.
type memory struct {
	dataset, limit int64
	limited        bool            // by maxmemory
	keys           int             // how many there are
	sample         []time.Duration // ages of some records
}

// enough is a sample that says something.
const enough = 100

// judge estimates by the records of the last hour what those of a window will take.
func (m memory) judge(r *health.Report, what string, window time.Duration) {
	if len(m.sample) < enough || m.limit == 0 {
		return
	}
	span := time.Minute // of a younger store the rate is estimated too low
	for _, age := range m.sample {
		span = min(max(span, age), time.Hour)
	}
	recent := 0
	for _, age := range m.sample {
		if age <= span {
			recent++
		}
	}
	rate := float64(m.keys) * float64(recent) / float64(len(m.sample)) / span.Seconds()
	need := rate * window.Seconds() * float64(m.dataset) / float64(m.keys)
	has := "maxmemory is " + size(m.limit)
	if !m.limited {
		has = "the machine's memory is " + size(m.limit)
	}
	r.Judge(what, health.UnwiseIf(need > 0.8*float64(m.limit), fmt.Sprintf("%s: at the present rate of about %.1f "+
		"new records a second, those of a window of %v take about %s; a full server refuses new messages, and they "+
		"wait; give it more, or shorten the window", has, rate, window, size(int64(need)))))
}

func size(bytes int64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// lookAtOutbox looks at the tables of the outbox, and at the slots that show its log.
func (d *doctor) lookAtOutbox(ctx context.Context) error {
	const what = "outbox"
	at, own, err := split(d.settings.Outbox, boxParameters...)
	if err != nil {
		return err
	}
	if at.Scheme == "postgres" || at.Scheme == "postgresql" {
		pool, err := d.pool(ctx, at)
		if err != nil {
			return err
		}
		if fit, err := d.lookAtTables(ctx, pool, own["schema"], own["table"]); err != nil || !fit {
			return err
		}
	}
	if d.deeper {
		return nil
	}
	box, err := d.box(ctx)
	var found []health.Finding
	if err == nil {
		found, err = operate.CheckOutbox(ctx, what, box)
	} else {
		found, err = operate.Unusable(what, err)
	}
	d.Looked, d.Found = append(d.Looked, what), append(d.Found, found...)
	return err
}

// located is how PostgreSQL finds one of the outbox's tables.
func located(schema, table string) string {
	if schema == "" {
		return pgx.Identifier{table}.Sanitize()
	}
	return pgx.Identifier{schema, table}.Sanitize()
}

const (
	tablesSQL = `
SELECT t.name, c.relpersistence = 'u', coalesce((
	SELECT string_agg(p, ', ') FROM unnest(t.privileges) AS p
	WHERE NOT CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, p) ELSE has_table_privilege(c.oid, p) END), '')
FROM (VALUES ($1::text, ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
	($2, ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']), ($3, ARRAY['SELECT']), ($4, ARRAY['USAGE'])
	) AS t (name, privileges)
	JOIN pg_class c ON c.oid = to_regclass(t.name)`

	outboxServerSQL = `
SELECT pg_is_in_recovery(), current_setting('fsync') = 'off', current_setting('full_page_writes') = 'off'`

	// A slot of pgwal has the name of its publication.
	slotsSQL = `
SELECT s.slot_name, s.active, coalesce(s.wal_status, ''),
	coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint,
	(SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') << 20
FROM pg_replication_slots s JOIN pg_publication p ON p.pubname = s.slot_name
WHERE s.database = current_database() AND s.plugin = 'pgoutput' AND (p.puballtables
	OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = to_regclass($1)))`
)

// lookAtTables reports whether pgoutbox may look at its tables, too.
func (d *doctor) lookAtTables(ctx context.Context, pool *pgxpool.Pool, schema, table string) (fit bool, err error) {
	const what = "outbox"
	if table == "" {
		table = "oncemill_outbox"
	}
	if err := d.postgresClock(ctx, what, pool); err != nil {
		return false, err
	}
	var standby, unsynced, torn bool
	if err := pool.QueryRow(ctx, outboxServerSQL).Scan(&standby, &unsynced, &torn); err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	d.Judge(what,
		health.LosesIf(standby, "its server is a standby: programs cannot write; connect to the primary"),
		health.LosesIf(unsynced, "fsync is off: a crash of the operating system may destroy the database; set it to on"),
		health.LosesIf(torn, "full_page_writes is off: a crash of the operating system may destroy pages; set it "+
			"to on"))

	names := []any{}
	for _, ending := range []string{"", "_lease", "_settings", "_places"} {
		names = append(names, located(schema, table+ending))
	}
	rows, _ := pool.Query(ctx, tablesSQL, names...)
	type found struct {
		Name     string
		Unlogged bool
		Lacks    string
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[found])
	if err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	fit = true
	readable := []string{}
	for _, t := range tables {
		d.Judge(what+", table "+t.Name,
			health.LosesIf(t.Unlogged, "it is UNLOGGED: a crash of the server empties it, and its messages are lost; "+
				"ALTER TABLE … SET LOGGED"),
			health.LosesIf(t.Lacks != "", "the database user may not use it, and programs fail: GRANT "+t.Lacks+" ON "+
				t.Name))
		fit = fit && t.Lacks == ""
		if t.Name != names[3] {
			readable = append(readable, t.Name)
		}
	}
	if !fit || standby {
		return false, nil
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	defer conn.Release()
	hidden, err := rowsecurity.Hidden(ctx, conn.Conn(), readable...)
	if err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	d.Judge(what+", table "+hidden, health.LosesIf(hidden != "", rowsecurity.Advice))
	rows, _ = conn.Query(ctx, slotsSQL, names[0])
	slots, err := pgx.CollectRows(rows, pgx.RowToStructByPos[slot])
	if err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	for _, s := range slots {
		s.judge(&d.Report)
	}
	return true, nil
}

// A slot is the replication slot of a pgwal relay.
type slot struct {
	Name     string
	Active   bool
	Status   string
	Retained int64 // bytes of log
	Most     int64 // max_slot_wal_keep_size in bytes; less than 0: no limit
}

func (s slot) judge(r *health.Report) {
	most := int64(1 << 30) // as pgwal
	if s.Most > 0 {
		most = min(most, s.Most/2)
	}
	if s.Status == "lost" {
		r.Judge("replication slot "+s.Name, health.LosesIf(true, "it is lost: relays end until it is made again; "+
			"call Setup of pgwal, and raise max_slot_wal_keep_size"))
		return
	}
	r.Judge("replication slot "+s.Name,
		health.UnwiseIf(!s.Active, fmt.Sprintf("no relay reads it, and it makes the server keep log, now %s, until the "+
			"disk is full: start relays, or call Drop of pgwal", size(s.Retained))),
		health.UnwiseIf(s.Active && s.Retained >= most, fmt.Sprintf("it makes the server keep %s of log: its relay is "+
			"behind, or waits for the broker; look there, and watch the disk", size(s.Retained))),
		health.UnwiseIf(!s.Active && s.Most > 0 && s.Retained >= most, fmt.Sprintf("it keeps %s of log, and the server "+
			"drops it beyond max_slot_wal_keep_size (%s)", size(s.Retained), size(s.Most))))
}

func (d *doctor) postgresClock(ctx context.Context, what string, pool *pgxpool.Pool) error {
	before := time.Now()
	var now time.Time
	if err := pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	d.clock(what, now, before, time.Now())
	return nil
}
