package mysqloutbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/producer"
)

var (
	numbersIn = regexp.MustCompile(`(x'[0-9a-f]*'|\d+)(,(x'[0-9a-f]*'|\d+))*`)
	planned   = regexp.MustCompile("^(SELECT|UPDATE|DELETE) .*`oncemill_outbox`")
)

// TestStatements_UseAnIndex explains each statement of the outbox, in a small table and in one that keeps rows.
func TestStatements_UseAnIndex(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		for _, kept := range []int{0, full(100_000, 5000)} {
			t.Run(fmt.Sprintf("ordered %v, %d rows", ordered, kept), func(t *testing.T) {
				t.Parallel()
				testPlans(t, ordered, kept)
			})
		}
	}
}

func testPlans(t *testing.T, ordered bool, kept int) {
	statements := map[string]string{} // by their form
	database := mysqltest.Shared(t).NewDatabase(t)
	db := recorded(t, database, func(_ context.Context, query string, _ conn) {
		if form := numbersIn.ReplaceAllString(query, "?"); planned.MatchString(query) {
			statements[form] = query
		}
	})
	db.SetMaxOpenConns(1)
	box := boxIn(t, db, mysqloutbox.Config{Ordered: ordered})
	for _, state := range []int{3, 3, 3, 0, 2} { // those of state 0 are delayed
		mustExec(t, db, `INSERT INTO oncemill_outbox (name, state, at, order_hash, written_at, not_before, id, topic, copy,
				message_key, header, payload)
			WITH RECURSIVE n AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM n WHERE n < 1000)
			SELECT UNHEX(SHA2(UUID(), 256)), ?, IF(? = 0, 4102444800000000, 0) + n,
				IF(? AND ? <> 3, UNHEX(MD5(n % 50)), NULL), 1, 1, UUID(), 'orders', '', IF(?, n % 50, ''), '', ''
			FROM n LIMIT ?`, state, state, ordered, state, ordered, min(kept, 1000))
	}
	for rows := 5000; rows < kept; rows *= 2 { // the number and the name are new
		mustExec(t, db, `INSERT INTO oncemill_outbox (name, state, at, written_at, not_before, id, topic, copy, message_key,
				header, payload)
			SELECT UNHEX(SHA2(UUID(), 256)), 3, at + 1000, 1, 1, id, topic, '', '', '', '' FROM oncemill_outbox
			WHERE state = 3`)
	}
	if kept > 0 {
		mustExec(t, db, "ANALYZE TABLE oncemill_outbox")
	}
	work(t, box, db)
	if len(statements) < 20 {
		t.Errorf("%d statements were seen, want all", len(statements))
	}
	plain := database.Open(t)
	for form, statement := range statements {
		for _, step := range explain(t, plain, statement) {
			if slices.Contains([]string{"ALL", "index"}, step.kind) || step.key == "" ||
				strings.Contains(step.extra, "filesort") {
				t.Errorf("table %s is read by %q, key %q, %s: %s", step.table, step.kind, step.key, step.extra, form)
			}
		}
	}
}

// A step is what a plan does with a table.
type step struct{ table, kind, key, extra string }

func explain(t *testing.T, db *sql.DB, statement string) (steps []step) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "EXPLAIN "+statement)
	if err != nil {
		t.Fatalf("%v: %s", err, statement)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var s step
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(sql.NullString)
		}
		if err := rows.Scan(values...); err != nil {
			t.Fatal(err)
		}
		for i, name := range columns {
			text := values[i].(*sql.NullString).String
			switch name {
			case "table":
				s.table = text
			case "type":
				s.kind = text
			case "key":
				s.key = text
			case "Extra":
				s.extra = text
			}
		}
		steps = append(steps, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return steps
}

// A key with a long backlog costs no more than what is leased of it.
func TestLease_ReadsWhatItLeasesOfAKeysBacklog(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.SetMaxOpenConns(1) // what it has read is counted by session
	box := boxIn(t, db, mysqloutbox.Config{Ordered: true})
	const backlog, most = 20_000, 64
	mustExec(t, db, `INSERT INTO oncemill_outbox (name, state, at, order_hash, written_at, not_before, id, topic, copy,
			message_key, header, payload)
		WITH RECURSIVE n AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM n WHERE n < 1000),
			m AS (SELECT 1 AS m UNION ALL SELECT m + 1 FROM m WHERE m < ?)
		SELECT UNHEX(SHA2(UUID(), 256)), 0, 1, LEFT(UNHEX(SHA2('k', 256)), 16), 1, 1, UUID(), 'orders', '', 'k', '', ''
		FROM n, m`, backlog/1000)
	for range 3 {
		mustExec(t, db, "FLUSH STATUS")
		token := producer.NewID()
		rows, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: token, Lease: time.Minute, Limit: most})
		if err != nil || len(rows) != most {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		var read int
		if err := db.QueryRowContext(t.Context(), `SELECT CAST(SUM(VARIABLE_VALUE) AS SIGNED)
			FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME LIKE 'HANDLER_READ%'`).Scan(&read); err != nil {
			t.Fatal(err)
		}
		if read > 10*most {
			t.Errorf("%d rows were read for %d of one key", read, most)
		}
		results := make([]outbox.Result, len(rows))
		for i, row := range rows {
			results[i] = outbox.Result{Number: row.Number, State: outbox.Published}
		}
		if err := box.Settle(t.Context(), token, results); err != nil {
			t.Fatal(err)
		}
	}
}
