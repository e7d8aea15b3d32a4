package faults_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// paymentsAudit are statements about the ledger of examples/payments, for all databases, and the results that they
// must return. {s} is the schema with its dot, {cents} the amount in a receipt, {key} its payment, {unpublished} says
// that it waits, {n} is the type of sums. The example's own books do not use them.
func paymentsAudit(payments, charged int) map[string]struct {
	query string
	want  int
} {
	return map[string]struct {
		query string
		want  int
	}{
		"payments":                  {`SELECT count(*) FROM {s}payments`, payments},
		"payments within the limit": {`SELECT count(*) FROM {s}payments WHERE cents <= 1000000`, charged},
		"entries":                   {`SELECT count(*) FROM {s}entries`, 2 * charged},
		"cents in all entries":      {`SELECT CAST(coalesce(sum(cents), 0) AS {n}) FROM {s}entries`, 0},
		"cents in all balances":     {`SELECT CAST(coalesce(sum(cents), 0) AS {n}) FROM {s}balances`, 0},
		"lines that are only in the payments, or only in the ledger": {
			difference(`SELECT payment, account, cents, count(*) AS n FROM (`+wantedLines+`) w
				GROUP BY payment, account, cents`,
				`SELECT payment, account, cents, count(*) AS n FROM {s}entries GROUP BY payment, account, cents`), 0,
		},
		"accounts whose balance is not that of their payments": {
			difference(`SELECT account, CAST(sum(cents) AS {n}) AS cents FROM (`+wantedLines+`) w GROUP BY account`,
				`SELECT account, cents FROM {s}balances`), 0,
		},
		"payments whose receipts in the outbox are not exactly one, of their amount": {
			difference(`SELECT id AS payment, cents, 1 AS n FROM {s}payments WHERE cents <= 1000000`,
				`SELECT {key} AS payment, {cents} AS cents, count(*) AS n FROM {s}oncemill_outbox
				WHERE topic LIKE '%.receipts' GROUP BY {key}, {cents}`), 0,
		},
		"receipts in the outbox that were not published": {
			`SELECT count(*) FROM {s}oncemill_outbox WHERE topic LIKE '%.receipts' AND {unpublished}`, 0,
		},
	}
}

// wantedLines are the entries that follow from the payments.
const wantedLines = `SELECT id AS payment, account, -cents AS cents FROM {s}payments WHERE cents <= 1000000
	UNION ALL SELECT id, merchant, cents FROM {s}payments WHERE cents <= 1000000`

// difference counts the rows that only one of two queries has. Neither must have a row twice.
func difference(a, b string) string {
	return `WITH a AS (` + a + `), b AS (` + b + `),
		more AS (SELECT * FROM a EXCEPT SELECT * FROM b), less AS (SELECT * FROM b EXCEPT SELECT * FROM a)
		SELECT (SELECT count(*) FROM more) + (SELECT count(*) FROM less)`
}

// A counting asks a database a question whose answer is a number.
type counting func(ctx context.Context, query string) (int, error)

func inPostgres(pool *pgxpool.Pool, schema string) counting {
	words := strings.NewReplacer("{s}", schema+".", "{cents}",
		`CAST(CAST(convert_from(payload, 'UTF8') AS json)->>'cents' AS bigint)`,
		"{key}", "key", "{unpublished}", "published_at IS NULL", "{n}", "bigint")
	return func(ctx context.Context, query string) (n int, err error) {
		err = pool.QueryRow(ctx, words.Replace(query)).Scan(&n)
		return n, err
	}
}

func inMySQL(db *sql.DB) counting {
	words := strings.NewReplacer("{s}", "", "{cents}", `CAST(json_value(payload, '$.cents') AS SIGNED)`,
		"{key}", "CAST(message_key AS CHAR)", "{unpublished}", "state <> 3", "{n}", "SIGNED")
	return func(ctx context.Context, query string) (n int, err error) {
		err = db.QueryRowContext(ctx, words.Replace(query)).Scan(&n)
		return n, err
	}
}

func inSQLite(db *sql.DB) counting {
	words := strings.NewReplacer("{s}", "", "{cents}", `json_extract(CAST(payload AS TEXT), '$.cents')`,
		"{key}", "key", "{unpublished}", "published_at IS NULL", "{n}", "bigint")
	return func(ctx context.Context, query string) (n int, err error) {
		err = db.QueryRowContext(ctx, words.Replace(query)).Scan(&n)
		return n, err
	}
}

// openFile opens a SQLite file until the test ends.
func openFile(t *testing.T, file string) *sql.DB {
	t.Helper()
	db, err := sqliteoutbox.Open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// auditPayments returns a sentence for each statement that returns something else.
func auditPayments(ctx context.Context, count counting, payments, charged int) (wrong []string) {
	for what, s := range paymentsAudit(payments, charged) {
		if n, err := count(ctx, s.query); err != nil || n != s.want {
			wrong = append(wrong, fmt.Sprintf("%s: %d, %v; want %d", what, n, err, s.want))
		}
	}
	return wrong
}

func TestPaymentsAudit_FindsEachKindOfMistake(t *testing.T) {
	t.Parallel()
	pool := postgrestest.Shared(t).NewDatabase(t).Pool(t)
	checkAudit(t, inPostgres(pool, "a"), "a.", "bytea", func(statement string) error {
		_, err := pool.Exec(t.Context(), statement)
		return err
	})
}

func TestPaymentsAudit_FindsEachKindOfMistakeInMySQL(t *testing.T) {
	t.Parallel()
	db := mysqltest.Shared(t).NewDatabase(t).Open(t)
	words := strings.NewReplacer(" text", " varchar(64)", "topic text, key text",
		"topic varchar(64), message_key varchar(64)",
		"published_at integer)", "state integer)", `}', 1)`, `}', 3)`, "SET key =", "SET message_key =",
		"SET published_at = NULL", "SET state = 0")
	checkAudit(t, inMySQL(db), "", "longblob", func(statement string) error {
		if strings.Contains(statement, "SCHEMA") {
			return nil
		}
		_, err := db.ExecContext(t.Context(), words.Replace(statement))
		return err
	})
}

func TestPaymentsAudit_FindsEachKindOfMistakeInSQLite(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "a.db"))
	checkAudit(t, inSQLite(db), "", "blob", func(statement string) error {
		if strings.Contains(statement, "SCHEMA") {
			return nil
		}
		_, err := db.ExecContext(t.Context(), statement)
		return err
	})
}

// checkAudit makes a ledger that is right, and then each mistake in one that is.
func checkAudit(t *testing.T, count counting, schema, bytes string, exec func(statement string) error) {
	t.Helper()
	words := strings.NewReplacer("{s}", schema, "{bytes}", bytes)
	audit := func(name string, statements ...string) []string {
		t.Helper()
		for _, s := range append([]string{
			`CREATE SCHEMA IF NOT EXISTS a`,
			`DROP TABLE IF EXISTS {s}payments`, `DROP TABLE IF EXISTS {s}entries`, `DROP TABLE IF EXISTS {s}balances`,
			`DROP TABLE IF EXISTS {s}oncemill_outbox`,
			`CREATE TABLE {s}payments (id text, account text, merchant text, cents bigint)`,
			`CREATE TABLE {s}entries (payment text, account text, cents bigint)`,
			`CREATE TABLE {s}balances (account text, cents bigint)`,
			`CREATE TABLE {s}oncemill_outbox (id text, topic text, key text, payload {bytes}, published_at integer)`,
			`INSERT INTO {s}payments VALUES
				('p1', 'ann', 'shop', 10), ('p2', 'bob', 'shop', 20), ('p3', 'bob', 'shop', 1000001)`,
			`INSERT INTO {s}entries VALUES
				('p1', 'ann', -10), ('p1', 'shop', 10), ('p2', 'bob', -20), ('p2', 'shop', 20)`,
			`INSERT INTO {s}balances VALUES ('ann', -10), ('bob', -20), ('shop', 30)`,
			`INSERT INTO {s}oncemill_outbox VALUES
				('r1', 'x.receipts', 'p1', '{"cents":10}', 1), ('r2', 'x.receipts', 'p2', '{"cents":20}', 1),
				('p1', 'x.taken', 'ann', '{"cents":10}', 1)`,
		}, statements...) {
			if err := exec(words.Replace(s)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		return auditPayments(t.Context(), count, 3, 2)
	}
	if wrong := audit("right"); wrong != nil {
		t.Errorf("%q about a ledger that is right", wrong)
	}
	for name, statement := range map[string]string{
		"a payment is lost": `DELETE FROM {s}payments WHERE id = 'p3'`,
		"booked twice": `INSERT INTO {s}entries VALUES
			('p1', 'ann', -10), ('p1', 'shop', 10)`,
		"not booked":                    `DELETE FROM {s}entries WHERE payment = 'p1'`,
		"booked instead of another one": `UPDATE {s}entries SET payment = 'p1' WHERE payment = 'p2'`,
		"half booked":                   `DELETE FROM {s}entries WHERE payment = 'p1' AND cents > 0`,
		"booked to another account":     `UPDATE {s}entries SET account = 'bob' WHERE account = 'ann'`,
		"over the limit, but booked": `INSERT INTO {s}entries VALUES
			('p3', 'bob', -1000001), ('p3', 'shop', 1000001)`,
		"a balance was changed twice":    `UPDATE {s}balances SET cents = 2 * cents WHERE account <> 'bob'`,
		"a balance is missing":           `DELETE FROM {s}balances WHERE account = 'ann'`,
		"an account that no payment has": `INSERT INTO {s}balances VALUES ('eve', 0)`,
		"a receipt is missing":           `DELETE FROM {s}oncemill_outbox WHERE id = 'r1'`,
		"a payment has receipts of different IDs": `INSERT INTO {s}oncemill_outbox VALUES
			('r3', 'x.receipts', 'p1', '{"cents":10}', 1)`,
		"a payment has another one's receipt": `UPDATE {s}oncemill_outbox SET key = 'p1', payload = '{"cents":10}'
			WHERE id = 'r2'`,
		"a receipt says another amount": `UPDATE {s}oncemill_outbox SET payload = '{"cents":11}'
			WHERE id = 'r1'`,
		"a receipt of a payment that was not charged": `UPDATE {s}oncemill_outbox SET key = 'p3' WHERE id = 'r1'`,
		"a receipt was not published": `UPDATE {s}oncemill_outbox SET published_at = NULL
			WHERE id = 'r1'`,
	} {
		if audit(name, statement) == nil {
			t.Errorf("%s: the audit finds nothing", name)
		}
	}
}
