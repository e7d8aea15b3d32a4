package faults_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/testserver"
)

// paymentsAudit are statements about the ledger of examples/payments, and what they must return. {s} is the schema. The
// example's own books do not use them.
func paymentsAudit(payments, charged int) map[string]struct {
	query string
	want  int
} {
	return map[string]struct {
		query string
		want  int
	}{
		"payments":                  {`SELECT count(*) FROM {s}.payments`, payments},
		"payments within the limit": {`SELECT count(*) FROM {s}.payments WHERE cents <= 1000000`, charged},
		"entries":                   {`SELECT count(*) FROM {s}.entries`, 2 * charged},
		"cents in all entries":      {`SELECT coalesce(sum(cents), 0)::int FROM {s}.entries`, 0},
		"cents in all balances":     {`SELECT coalesce(sum(cents), 0)::int FROM {s}.balances`, 0},
		"receipts in the outbox":    {`SELECT count(*) FROM {s}.oncemill_outbox WHERE topic LIKE '%.receipts'`, charged},
		"lines that are only in the payments, or only in the ledger": {`WITH want AS (` + wantedLines + `),
			more AS (SELECT * FROM want EXCEPT ALL SELECT * FROM {s}.entries),
			less AS (SELECT * FROM {s}.entries EXCEPT ALL SELECT * FROM want)
			SELECT (SELECT count(*) FROM more) + (SELECT count(*) FROM less)`, 0},
		"accounts whose balance is not that of their payments": {`WITH want AS (SELECT account, sum(cents) AS cents FROM (` + wantedLines + `) l GROUP BY account)
			SELECT count(*) FROM want FULL JOIN {s}.balances b USING (account) WHERE want.cents IS DISTINCT FROM b.cents`, 0},
	}
}

// wantedLines are the entries that follow from the payments.
const wantedLines = `SELECT id AS payment, account, -cents AS cents FROM {s}.payments WHERE cents <= 1000000
	UNION ALL SELECT id, merchant, cents FROM {s}.payments WHERE cents <= 1000000`

// auditPayments returns a sentence for each statement that returns something else.
func auditPayments(ctx context.Context, pool *pgxpool.Pool, schema string, payments, charged int) (wrong []string) {
	for what, s := range paymentsAudit(payments, charged) {
		var n int
		err := pool.QueryRow(ctx, strings.ReplaceAll(s.query, "{s}", schema)).Scan(&n)
		if err != nil || n != s.want {
			wrong = append(wrong, fmt.Sprintf("%s: %d, %v; want %d", what, n, err, s.want))
		}
	}
	return wrong
}

func TestPaymentsAudit_FindsEachKindOfMistake(t *testing.T) {
	t.Parallel()
	pool := testserver.SharedPostgres(t).NewDatabase(t).Pool(t)
	audit := func(name string, statements ...string) []string {
		t.Helper()
		for _, s := range append([]string{
			`DROP SCHEMA IF EXISTS a CASCADE`, `CREATE SCHEMA a`,
			`CREATE TABLE a.payments (id text, account text, merchant text, cents bigint)`,
			`CREATE TABLE a.entries (payment text, account text, cents bigint)`,
			`CREATE TABLE a.balances (account text, cents bigint)`,
			`CREATE TABLE a.oncemill_outbox (id text, topic text)`,
			`INSERT INTO a.payments VALUES ('p1', 'ann', 'shop', 10), ('p2', 'bob', 'shop', 20), ('p3', 'bob', 'shop', 1000001)`,
			`INSERT INTO a.entries VALUES ('p1', 'ann', -10), ('p1', 'shop', 10), ('p2', 'bob', -20), ('p2', 'shop', 20)`,
			`INSERT INTO a.balances VALUES ('ann', -10), ('bob', -20), ('shop', 30)`,
			`INSERT INTO a.oncemill_outbox VALUES ('r1', 'x.receipts'), ('r2', 'x.receipts'), ('p1', 'x.taken')`,
		}, statements...) {
			if _, err := pool.Exec(t.Context(), s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		return auditPayments(t.Context(), pool, "a", 3, 2)
	}
	if wrong := audit("right"); wrong != nil {
		t.Errorf("%q about a ledger that is right", wrong)
	}
	for name, statement := range map[string]string{
		"a payment is lost":                       `DELETE FROM a.payments WHERE id = 'p3'`,
		"booked twice":                            `INSERT INTO a.entries VALUES ('p1', 'ann', -10), ('p1', 'shop', 10)`,
		"not booked":                              `DELETE FROM a.entries WHERE payment = 'p1'`,
		"booked instead of another one":           `UPDATE a.entries SET payment = 'p1' WHERE payment = 'p2'`,
		"half booked":                             `DELETE FROM a.entries WHERE payment = 'p1' AND cents > 0`,
		"booked to another account":               `UPDATE a.entries SET account = 'bob' WHERE account = 'ann'`,
		"over the limit, but booked":              `INSERT INTO a.entries VALUES ('p3', 'bob', -1000001), ('p3', 'shop', 1000001)`,
		"a balance was changed twice":             `UPDATE a.balances SET cents = 2 * cents WHERE account <> 'bob'`,
		"a balance is missing":                    `DELETE FROM a.balances WHERE account = 'ann'`,
		"an account that no payment has":          `INSERT INTO a.balances VALUES ('eve', 0)`,
		"a receipt is missing":                    `DELETE FROM a.oncemill_outbox WHERE id = 'r1'`,
		"a payment has receipts of different IDs": `INSERT INTO a.oncemill_outbox VALUES ('r3', 'x.receipts')`,
	} {
		if audit(name, statement) == nil {
			t.Errorf("%s: the audit finds nothing", name)
		}
	}
}
