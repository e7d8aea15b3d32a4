package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqltest"
	"github.com/oncemill/oncemill/internal/txctx"
)

// TestStatements_ReadOnlyWhatTheyWant looks at the plans of all statements that the store sends.
func TestStatements_ReadOnlyWhatTheyWant(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	plain := openAt(t, path)
	storeIn(t, plain)
	var sent sqltest.Recorder
	doEverything(t, sent.Open(t, fileConnector("file:"+path+"?_journal_mode=WAL&_txlock=immediate")))
	explained := 0
	for _, statements := range sent.Statements() {
		for statement := range strings.SplitSeq(statements, ";\n") {
			if !strings.Contains(statement, `"oncemill_dedup`) || strings.HasSuffix(statement, "WHERE FALSE") {
				continue // it searches nothing
			}
			explained++
			if plan := explain(t, plain, statement); strings.Contains(plan, "SCAN oncemill_dedup") ||
				strings.Contains(plan, "TEMP B-TREE") {
				t.Errorf("the plan is %q, of %s", plan, statement)
			}
		}
	}
	if explained < 15 {
		t.Errorf("only %d statements were explained", explained)
	}
}

// doEverything calls all methods of the store, and of its inbox.
func doEverything(t *testing.T, db *sql.DB) {
	ctx, s := t.Context(), storeIn(t, db)
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	c := claim(t, s, request("leased"), dedupstore.AcquiredRun).Claim
	must(s.Extend(ctx, []dedupstore.Extension{beat(c)})...)
	must(dedupstore.SettleOne(ctx, s, c, dedupstore.Finish{
		Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Retention: time.Hour,
	}))
	must(s.NoteDuplicates(ctx, []dedupstore.Duplicates{{Key: c.Key, Count: 1, Last: time.Now()}}))
	large := succeeded
	large.Outcome.Result = make([]byte, pageBytes) // ends a page of a list
	_, err := inTx(t, s, request("inbox"), func(context.Context) (dedupstore.Settlement, error) { return large, nil })
	must(err)
	joining := claim(t, s, request("joined"), dedupstore.AcquiredRun).Claim
	tx, err := db.BeginTx(ctx, nil)
	must(err)
	must(s.Join(txctx.With(ctx, &joining), tx), tx.Commit())
	all := dedupstore.Filter{
		Tenant: "acme", States: []dedupstore.State{dedupstore.Finished}, Kinds: []dedupstore.Kind{dedupstore.Failed},
		Reason: "x", Since: time.Now(), Before: time.Now(),
	}
	for _, f := range []dedupstore.Filter{{}, {ID: "leased"}, all} {
		_, err := s.List(ctx, f, "")
		must(err)
		_, err = s.Count(ctx, f, "")
		must(err)
	}
	for _, change := range []dedupstore.Change{dedupstore.Rerun{}, dedupstore.Forget{}} {
		found, err := s.Look(ctx, []dedupstore.Key{c.Key})
		must(err, s.Change(ctx, found[0], change))
	}
	_, err = s.Clean(ctx, 10)
	must(err)
	_, err = s.Check(ctx)
	must(err)
}

// explain is the plan of a statement.
func explain(t *testing.T, db *sql.DB, statement string) string {
	t.Helper()
	rows, err := db.Query("EXPLAIN QUERY PLAN "+statement, make([]any, strings.Count(statement, "?"))...)
	if err != nil {
		t.Fatalf("%v, in %s", err, statement)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "; ")
}

// A fileConnector is the name of a database.
type fileConnector string

func (c fileConnector) Connect(context.Context) (driver.Conn, error) {
	return c.Driver().Open(string(c))
}

func (fileConnector) Driver() driver.Driver { return &sqlite.Driver{} }
