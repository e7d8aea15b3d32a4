package faults_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// paymentsTables are what is in the database of examples/payments. The example's own books do not read it like this.
type paymentsTables struct {
	Payments []paymentRow
	Entries  []entryRow
	Balances []balanceRow
	Receipts []receiptRow
}

type paymentRow struct {
	ID, Account, Merchant string
	Cents                 int64
}

type entryRow struct {
	Payment, Account string
	Cents            int64
}

type balanceRow struct {
	Account string
	Cents   int64
}

// A receiptRow is a row of the outbox.
type receiptRow struct {
	Payment   string
	Payload   string
	Published bool
}

// paymentsLimit is the amount in cents up to which payments are charged.
const paymentsLimit = 1_000_000

// A paymentsDB says how a database names what is in it.
type paymentsDB struct {
	*sql.DB
	schema    string // with its dot
	key       string // of the outbox: its column
	published string // of the outbox: a condition
}

func inPostgres(t *testing.T, pool *pgxpool.Pool, schema string) paymentsDB {
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	return paymentsDB{db, schema + ".", "key", "published_at IS NOT NULL"}
}

func inMySQL(db *sql.DB) paymentsDB { return paymentsDB{db, "", "message_key", "state = 3"} }

func inSQLite(db *sql.DB) paymentsDB { return paymentsDB{db, "", "key", "published_at IS NOT NULL"} }

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

// read reads the tables.
func (db paymentsDB) read(ctx context.Context) (all paymentsTables, err error) {
	const outbox = `oncemill_outbox WHERE topic LIKE '%.receipts'`
	return all, errors.Join(
		db.each(ctx, `id, account, merchant, cents`, `payments`, func(scan func(...any) error) error {
			var r paymentRow
			err := scan(&r.ID, &r.Account, &r.Merchant, &r.Cents)
			all.Payments = append(all.Payments, r)
			return err
		}),
		db.each(ctx, `payment, account, cents`, `entries`, func(scan func(...any) error) error {
			var r entryRow
			err := scan(&r.Payment, &r.Account, &r.Cents)
			all.Entries = append(all.Entries, r)
			return err
		}),
		db.each(ctx, `account, cents`, `balances`, func(scan func(...any) error) error {
			var r balanceRow
			err := scan(&r.Account, &r.Cents)
			all.Balances = append(all.Balances, r)
			return err
		}),
		db.each(ctx, db.key+`, payload, `+db.published, outbox, func(scan func(...any) error) error {
			var r receiptRow
			err := scan(&r.Payment, &r.Payload, &r.Published)
			all.Receipts = append(all.Receipts, r)
			return err
		}),
	)
}

// each calls a function for each row of a table.
func (db paymentsDB) each(ctx context.Context, columns, table string, read func(scan func(...any) error) error) error {
	rows, err := db.QueryContext(ctx, `SELECT `+columns+` FROM `+db.schema+table)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := read(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// ledger tells a ledger what each payment was to make, and what it made: two entries and a receipt that was published,
// or nothing if it is over the limit. Accounts have the balance of their payments.
func (p paymentsTables) ledger() (l *ledger.Ledger, charged int) {
	l = ledger.New(nil)
	balances := map[string]int64{}
	for _, r := range p.Payments {
		if r.Cents > paymentsLimit {
			l.Want(r.ID)
			continue
		}
		charged++
		l.Want(r.ID, entryText(r.Account, -r.Cents), entryText(r.Merchant, r.Cents), receiptText(r.Cents, true))
		balances[r.Account] -= r.Cents
		balances[r.Merchant] += r.Cents
	}
	for account, cents := range balances {
		l.Want("balance of "+account, fmt.Sprint(cents))
	}
	for _, r := range p.Entries {
		l.Found(r.Payment, entryText(r.Account, r.Cents))
	}
	for _, r := range p.Receipts {
		var receipt struct{ Cents int64 }
		if err := json.Unmarshal([]byte(r.Payload), &receipt); err != nil {
			l.Found(r.Payment, err.Error())
			continue
		}
		l.Found(r.Payment, receiptText(receipt.Cents, r.Published))
	}
	for _, r := range p.Balances {
		l.Found("balance of "+r.Account, fmt.Sprint(r.Cents))
	}
	return l, charged
}

func entryText(account string, cents int64) string {
	return fmt.Sprintf("entry of %d for %s", cents, account)
}

func receiptText(cents int64, published bool) string {
	return fmt.Sprintf("receipt of %d, published: %v", cents, published)
}

// auditPayments wants each payment to be booked once.
func auditPayments(t *testing.T, db paymentsDB, payments, charged int) {
	t.Helper()
	tables, err := db.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, within := tables.ledger()
	l.Balance(len(tables.Payments)).MustExplain(t)
	if len(tables.Payments) != payments || within != charged {
		t.Errorf("%d payments, %d of them within the limit; want %d and %d", len(tables.Payments), within, payments, charged)
	}
}

// rightPayments are tables without a mistake.
func rightPayments() paymentsTables {
	return paymentsTables{
		Payments: []paymentRow{{"p1", "ann", "shop", 10}, {"p2", "bob", "shop", 20}, {"p3", "bob", "shop", 1_000_001}},
		Entries:  []entryRow{{"p1", "ann", -10}, {"p1", "shop", 10}, {"p2", "bob", -20}, {"p2", "shop", 20}},
		Balances: []balanceRow{{"ann", -10}, {"bob", -20}, {"shop", 30}},
		Receipts: []receiptRow{{"p1", `{"cents":10}`, true}, {"p2", `{"cents":20}`, true}},
	}
}

func TestPaymentsAudit_FindsEachKindOfMistake(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		make func(p *paymentsTables)
		want []string // what the faults are about
	}{
		"right":        {func(*paymentsTables) {}, nil},
		"booked twice": {func(p *paymentsTables) { p.Entries = append(p.Entries, p.Entries[:2]...) }, []string{"p1"}},
		"not booked":   {func(p *paymentsTables) { p.Entries = p.Entries[2:] }, []string{"p1"}},
		"booked instead of another one": {func(p *paymentsTables) { p.Entries[2].Payment, p.Entries[3].Payment = "p1", "p1" },
			[]string{"p1", "p2"}},
		"half booked":               {func(p *paymentsTables) { p.Entries = slices.Delete(p.Entries, 1, 2) }, []string{"p1"}},
		"booked to another account": {func(p *paymentsTables) { p.Entries[0].Account = "bob" }, []string{"p1"}},
		"booked with another sign":  {func(p *paymentsTables) { p.Entries[0].Cents = 10 }, []string{"p1"}},
		"over the limit, but booked": {func(p *paymentsTables) {
			p.Entries = append(p.Entries, entryRow{"p3", "bob", -1_000_001}, entryRow{"p3", "shop", 1_000_001})
		}, []string{"p3"}},
		"a payment that is not there": {func(p *paymentsTables) { p.Payments = p.Payments[1:] },
			[]string{"balance of ann", "balance of shop", "p1"}},
		"a balance was changed twice": {func(p *paymentsTables) { p.Balances[0].Cents *= 2 }, []string{"balance of ann"}},
		"a balance is missing":        {func(p *paymentsTables) { p.Balances = p.Balances[1:] }, []string{"balance of ann"}},
		"an account that no payment has": {func(p *paymentsTables) { p.Balances = append(p.Balances, balanceRow{"eve", 0}) },
			[]string{"balance of eve"}},
		"a receipt is missing": {func(p *paymentsTables) { p.Receipts = p.Receipts[1:] }, []string{"p1"}},
		"a payment has two receipts": {func(p *paymentsTables) { p.Receipts = append(p.Receipts, p.Receipts[0]) },
			[]string{"p1"}},
		"a payment has another one's receipt": {func(p *paymentsTables) { p.Receipts[1] = p.Receipts[0] },
			[]string{"p1", "p2"}},
		"a receipt says another amount": {func(p *paymentsTables) { p.Receipts[0].Payload = `{"cents":11}` }, []string{"p1"}},
		"a receipt of a payment that was not charged": {func(p *paymentsTables) { p.Receipts[0].Payment = "p3" },
			[]string{"p1", "p3"}},
		"a receipt was not published": {func(p *paymentsTables) { p.Receipts[0].Published = false }, []string{"p1"}},
		"a receipt that is no JSON":   {func(p *paymentsTables) { p.Receipts[0].Payload = "10}" }, []string{"p1"}},
	} {
		p := rightPayments()
		tc.make(&p)
		l, _ := p.ledger()
		var got []string
		for _, f := range l.Balance(0).Faults {
			got = append(got, f.ID)
		}
		slices.Sort(got)
		if diff := cmp.Diff(tc.want, slices.Compact(got)); diff != "" {
			t.Errorf("%s: faults of (-want +got):\n%s", name, diff)
		}
	}
}

// What is not published, and other rows of the outbox, are told apart in each database.
func TestPaymentsAudit_ReadsWhatIsThere(t *testing.T) {
	t.Parallel()
	pool := postgrestest.Shared(t).NewDatabase(t).Pool(t)
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA a`); err != nil {
		t.Fatal(err)
	}
	mysql := mysqltest.Shared(t).NewDatabase(t).Open(t)
	for name, tc := range map[string]struct {
		db                 paymentsDB
		bytes, state       string
		published, waiting string
	}{
		"PostgreSQL": {inPostgres(t, pool, "a"), "bytea", "published_at", "1", "NULL"},
		"MySQL":      {inMySQL(mysql), "longblob", "state", "3", "0"},
		"SQLite":     {inSQLite(openFile(t, filepath.Join(t.TempDir(), "a.db"))), "blob", "published_at", "1", "NULL"},
	} {
		words := strings.NewReplacer("{s}", tc.db.schema, "{key}", tc.db.key, "{bytes}", tc.bytes, "{state}", tc.state,
			"{published}", tc.published, "{waiting}", tc.waiting)
		for _, statement := range []string{
			`CREATE TABLE {s}payments (id varchar(64), account varchar(64), merchant varchar(64), cents bigint)`,
			`CREATE TABLE {s}entries (payment varchar(64), account varchar(64), cents bigint)`,
			`CREATE TABLE {s}balances (account varchar(64), cents bigint)`,
			`CREATE TABLE {s}oncemill_outbox (topic varchar(64), {key} varchar(64), payload {bytes}, {state} integer)`,
			`INSERT INTO {s}payments VALUES
				('p1', 'ann', 'shop', 10), ('p2', 'bob', 'shop', 20), ('p3', 'bob', 'shop', 1000001)`,
			`INSERT INTO {s}entries VALUES
				('p1', 'ann', -10), ('p1', 'shop', 10), ('p2', 'bob', -20), ('p2', 'shop', 20)`,
			`INSERT INTO {s}balances VALUES ('ann', -10), ('bob', -20), ('shop', 30)`,
			`INSERT INTO {s}oncemill_outbox VALUES ('x.receipts', 'p1', '{"cents":10}', {published}),
				('x.taken', 'ann', '{"cents":10}', {published}), ('x.receipts', 'p2', '{"cents":20}', {waiting})`,
		} {
			if _, err := tc.db.ExecContext(t.Context(), words.Replace(statement)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		want := rightPayments()
		want.Receipts[1].Published = false
		got, err := tc.db.read(t.Context())
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}
