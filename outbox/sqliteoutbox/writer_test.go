package sqliteoutbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

func TestInSQL_WithoutATransactionIsAnError(t *testing.T) {
	t.Parallel()
	box, _ := newBox(t)
	err := box.InSQL(nil).Publish(t.Context(), message("1"))
	if e, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || e.Field != "tx" {
		t.Errorf("error %v, want one for tx", err)
	}
}

// TestInSQL_WhatSQLiteRolledBackIsNotPublished has a writer that goes on after a statement that SQLite ended the transaction for.
func TestInSQL_WhatSQLiteRolledBackIsNotPublished(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(tx *sql.Tx) error{
		"a constraint says ROLLBACK": func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), `INSERT OR ROLLBACK INTO orders VALUES ('1')`)
			return err
		},
		"a statement is interrupted": func(tx *sql.Tx) error {
			for wait := 10 * time.Millisecond; ; wait *= 2 { // it may end before the statement begins
				if _, err := tx.ExecContext(t.Context(), `SAVEPOINT there`); err != nil {
					t.Error(err)
					return err
				}
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				_, err := tx.ExecContext(ctx, `INSERT INTO orders WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n) SELECT 'order ' || i FROM n`)
				cancel()
				if _, gone := tx.ExecContext(t.Context(), `RELEASE there`); gone != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box, db := newBox(t)
			tx := begin(t, db)
			if _, err := tx.ExecContext(t.Context(), `INSERT INTO orders VALUES ('1')`); err != nil {
				t.Fatal(err)
			}
			if err := ends(tx); err == nil {
				t.Fatal("the statement did not fail")
			}
			if err := box.InSQL(tx).Publish(t.Context(), message("1")); err == nil || !strings.Contains(err.Error(), "the transaction is over") {
				t.Errorf("a message was written outside of the transaction: %v", err)
			}
			if err := tx.Commit(); err == nil {
				t.Error("there was a transaction to commit")
			}
			if rows := count(t, db, "true"); rows != 0 {
				t.Errorf("%d messages are to be published, want none, as no order is there", rows)
			}
			write(t, box, db, message("2")) // the connection is as it was
		})
	}
}
