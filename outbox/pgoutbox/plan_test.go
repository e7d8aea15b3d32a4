package pgoutbox

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// retained is how many published rows lie in the table while statements look for others.
func retained() int {
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		return 1_000_000
	}
	return 50_000
}

// TestStatements_ReadOnlyWhatTheyWant counts the rows that each part of a plan reads.
func TestStatements_ReadOnlyWhatTheyWant(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		for _, analyzed := range []bool{false, true} {
			t.Run(fmt.Sprintf("ordered=%v,analyzed=%v", ordered, analyzed), func(t *testing.T) {
				t.Parallel()
				testPlans(t, ordered, analyzed)
			})
		}
	}
}

func testPlans(t *testing.T, ordered, analyzed bool) {
	schema := fmt.Sprintf("plans_%d_%v_%v", os.Getpid(), ordered, analyzed)
	pool := postgrestest.Shared(t).Pool(t)
	box, err := New(pool, Config{Schema: schema, Ordered: ordered})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE") })
	fill(t, pool, box, analyzed)
	const token = "held"
	for _, tc := range []struct {
		name, before, query, index string
		args                       []any
	}{
		{"lease", box.sql.leaseLock, box.sql.lease, "_next", []any{"t1", 1000, 100}},
		{"suspects", box.sql.leaseLock, box.sql.suspects, "_suspects", []any{"t2", 1000, 8}},
		{"take over", box.sql.leaseLock, box.sql.takeOver, "_pkey", []any{100}},
		{"read", "", box.sql.read, "_pkey", []any{token}},
		{"settle", "", box.sql.settle, "_pkey", []any{token, "{1}", "{2}", "{3}", "{0}", "{failed}", "{x}"}},
		{"clean", box.sql.tidyLock, box.sql.clean, "_published", []any{0, 100}},
		{"replay", box.sql.tidyLock, box.sql.replay, "_published", []any{nil, "infinity", "", nil, 100, "null"}},
		{"find", "", box.sql.find, "_pkey", []any{"{1,2,3}"}},
		{"revive", "", box.sql.revive, "oncemill_outbox_", []any{"{40}", `{""}`, "{0}"}},
		{"stats", "", box.sql.stats, "_dead", nil},
		{"requeue", "", box.sql.requeue, "_dead", []any{"{a,b}", `{t,""}`, "{NULL,now}"}},
		{"discard", "", box.sql.discard, "_dead", []any{"{a,b}", `{t,""}`, "{NULL,now}"}},
	} {
		if !analyzed && (tc.index == "_dead" || tc.name == "replay") {
			continue // an operator's, who can wait
		}
		plan := explain(t, pool, tc.before, tc.query, tc.args)
		if !strings.Contains(plan, tc.index) {
			t.Errorf("%s: index %s is not used:\n%s", tc.name, tc.index, plan)
		}
		if strings.Contains(plan, "Seq Scan on oncemill_outbox ") {
			t.Errorf("%s reads the whole table:\n%s", tc.name, plan)
		}
		if read := mostRows(plan); read > 3000 {
			t.Errorf("%s reads %d rows:\n%s", tc.name, read, plan)
		}
	}
	in := namesOf(box.cfg)
	var middle int64 // of what is published
	if err := pool.QueryRow(t.Context(), in.Replace(`SELECT (extract(epoch FROM published_at) * 1000000)::bigint
		FROM {table} WHERE number = $1`), -retained()/2).Scan(&middle); err != nil {
		t.Fatal(err)
	}
	for i, p := range parts(ordered) {
		index := map[string]string{"place": "_lanes", "dead_at": "_dead", "published_at": "_published"}[p.order]
		at := int64(1)
		switch {
		case p.order == "published_at":
			at = middle
		case strings.Contains(p.rows, "unknowns IS NOT NULL"):
			index = "_suspects"
		case index == "":
			index = "_next"
		}
		plan := explain(t, pool, alongIndexSQL, in.Replace(p.in(countSQL)), []any{at, 1, nil, "", "", nil, nil, false})
		if !strings.Contains(plan, index) || strings.Contains(plan, "Seq Scan on oncemill_outbox ") {
			t.Errorf("part %d: index %s is not used, or the whole table is read:\n%s", i, index, plan)
		}
		if read := mostRows(plan); read > outgoing.LookedRows+100 {
			t.Errorf("part %d reads %d rows:\n%s", i, read, plan)
		}
	}
}

// fill makes many published rows, and some of each other kind.
func fill(t *testing.T, pool *pgxpool.Pool, box *Outbox, analyzed bool) {
	t.Helper()
	key, place := "NULL", "NULL"
	if box.cfg.Ordered {
		key, place = "i % 100", "i"
	}
	in := namesOf(box.cfg)
	for _, query := range []string{
		`ALTER TABLE {table} SET (autovacuum_enabled = false)`,
		`INSERT INTO {table} (number, id, topic, payload, published_at)
			SELECT -i, i, 'orders', '', clock_timestamp() FROM generate_series(1, ` + fmt.Sprint(retained()) + `) AS i`,
		`INSERT INTO {table} (number, id, topic, payload, key, place)
			SELECT i, i, 'orders', '', ` + key + `, ` + place + ` FROM generate_series(1, 2000) AS i`,
		`UPDATE {table} SET unknowns = 1 WHERE number IN (10, 20, 30)`,
		`UPDATE {table} SET dead_at = now() WHERE number IN (40, 50)`,
		`UPDATE {table} SET failures = 1, due_at = now() + interval '1 hour' WHERE number IN (60, 70)`,
		`INSERT INTO {lease} (token, ends_at, numbers) VALUES ('held', now() + interval '1 hour', '{1,2,3,4,5}'), ('ended', now(), '{6,7}')`,
	} {
		if _, err := pool.Exec(t.Context(), in.Replace(query)); err != nil {
			t.Fatal(err)
		}
	}
	if analyzed {
		if _, err := pool.Exec(t.Context(), in.Replace(`VACUUM ANALYZE {table}`)); err != nil {
			t.Fatal(err)
		}
	}
}

// explain runs a statement after the one that takes its lock, and rolls back.
func explain(t *testing.T, pool *pgxpool.Pool, before, query string, args []any) string {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if before != "" {
		var args []any
		if strings.Contains(before, "$1") {
			args = append(args, "0")
		}
		if _, err := tx.Exec(t.Context(), before, args...); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := tx.Query(t.Context(), "EXPLAIN (ANALYZE, TIMING OFF) "+query, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%v\n%s", err, query)
	}
	return strings.Join(lines, "\n")
}

// mostRows is the largest number of rows that a part of the plan returned or passed over.
func mostRows(plan string) (most int) {
	for line := range strings.Lines(plan) {
		for _, mark := range []string{"(actual rows=", "Removed by Filter: ", "Removed by Join Filter: "} {
			if _, rest, found := strings.Cut(line, mark); found {
				var n int
				fmt.Sscan(strings.FieldsFunc(rest, func(r rune) bool { return r < '0' || r > '9' })[0], &n)
				most = max(most, n)
			}
		}
	}
	return most
}
