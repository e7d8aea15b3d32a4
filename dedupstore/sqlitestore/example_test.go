package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
)

// A charge is handled three times, by copies of one message, and is in the ledger once.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sqlitestore-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_journal_mode=WAL&_busy_timeout=10000&_txlock=immediate")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `CREATE TABLE ledger (id TEXT, cents INTEGER)`); err != nil {
		panic(err)
	}

	store, err := sqlitestore.New(db, sqlitestore.Config{})
	if err != nil {
		panic(err)
	}
	if err := store.Migrate(ctx); err != nil {
		panic(err)
	}
	guard, err := oncemill.NewGuard(store.Inbox(), oncemill.Policy{})
	if err != nil {
		panic(err)
	}

	charge := func(ctx context.Context) (dedupstore.Outcome, error) {
		tx := sqlitestore.Tx(ctx) // committed together with the outcome
		_, err := tx.ExecContext(ctx, `INSERT INTO ledger (id, cents) VALUES (?, ?)`, "order-17", 1250)
		return dedupstore.Outcome{}, err
	}
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "order-17"}}
	for range 3 {
		result, err := guard.Run(ctx, call, charge)
		fmt.Println(result.Outcome.Kind, result.Duplicate, err)
	}
	var entries int
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM ledger`).Scan(&entries)
	fmt.Println("entries in the ledger:", entries, err)
	// Output:
	// succeeded false <nil>
	// succeeded true <nil>
	// succeeded true <nil>
	// entries in the ledger: 1 <nil>
}

func ExampleNew() {
	db, err := sql.Open("sqlite", "file:shop.db?_journal_mode=WAL")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	_, err = sqlitestore.New(db, sqlitestore.Config{Table: "my dedup"})
	fmt.Println(err)
	// Output:
	// sqlitestore: Config.Table is "my dedup", want up to 40 ASCII letters, digits and underscores, not beginning with a digit
}

func ExampleStore_Join() {
	// A handler under the leased form, with a transaction of its own.
	handler := func(ctx context.Context, db *sql.DB, store *sqlitestore.Store) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after the commit it does nothing
		if _, err := tx.ExecContext(ctx, `INSERT INTO ledger (id, cents) VALUES (?, ?)`, "order-17", 1250); err != nil {
			return err
		}
		if err := store.Join(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = handler
}
