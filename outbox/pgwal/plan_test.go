package pgwal

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

type nobody struct{}

func (nobody) Publish(context.Context, ...producer.Message) error { return nil }

// TestStatements_ReadNoTableAsAWhole: published rows cost nothing, whether the outbox keeps order or not.
func TestStatements_ReadNoTableAsAWhole(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprintf("ordered=%v", ordered), func(t *testing.T) {
			t.Parallel()
			schema := fmt.Sprintf("plans_%d_%v", os.Getpid(), ordered)
			pool := postgrestest.Shared(t).Pool(t)
			box, err := pgoutbox.New(pool, pgoutbox.Config{Schema: schema, Ordered: ordered})
			if err != nil {
				t.Fatal(err)
			}
			if err := box.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { pool.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE") })
			r, err := New(Config{Pool: pool, Schema: schema, Logger: slog.New(slog.DiscardHandler)}, nobody{})
			if err != nil {
				t.Fatal(err)
			}
			for _, query := range []string{
				`INSERT INTO {table} (number, id, topic, payload, published_at)
					SELECT -i, i, 'orders', '', clock_timestamp() FROM generate_series(1, 20000) AS i`,
				`INSERT INTO {table} (number, id, topic, payload) SELECT i, i, 'orders', '' FROM generate_series(1, 100) AS i`,
				`UPDATE {table} SET due_at = written_at WHERE number BETWEEN 10 AND 20`,
				`UPDATE {table} SET unknowns = 1 WHERE number BETWEEN 15 AND 20`,
				`ANALYZE {table}`,
			} {
				if _, err := pool.Exec(t.Context(), r.tables.Replace(query)); err != nil {
					t.Fatal(err)
				}
			}
			const verdicts = `[{"number": 1, "state": "published", "delay": 0, "failures": 0, "unknowns": 0, "reason": "",
				"replays": 0}]`
			for name, tc := range map[string]struct {
				query string
				args  []any
			}{
				"known": {knownSQL, []any{"{1,2}"}}, "rest": {restSQL, []any{"{1,2}", 100, 1 << 20}},
				"unseen": {unseenSQL, []any{100}}, "settle": {settleSQL, []any{verdicts}},
				"mark": {markSQL, []any{"{1}", "{2026-01-01}"}},
			} {
				plan := explain(t, r, tc.query, tc.args)
				if strings.Contains(plan, "Seq Scan on oncemill_outbox ") || !strings.Contains(plan, "oncemill_outbox_") {
					t.Errorf("%s reads the whole table:\n%s", name, plan)
				}
			}
		})
	}
}

func explain(t *testing.T, r *Relay, query string, args []any) string {
	t.Helper()
	tx, err := r.cfg.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), planSQL); err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(t.Context(), "EXPLAIN "+r.tables.Replace(query),
		append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%v\n%s", err, query)
	}
	return strings.Join(lines, "\n")
}
