package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqltest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

// TestStatements_ReadOnlyWhatTheyWant explains all statements that the store sends, over a table of some thousand
// records, before and after the server counted them.
func TestStatements_ReadOnlyWhatTheyWant(t *testing.T) {
	t.Parallel()
	for _, analyzed := range []bool{false, true} {
		t.Run(fmt.Sprintf("analyzed=%t", analyzed), func(t *testing.T) {
			t.Parallel()
			d := mysqltest.Shared(t).NewDatabase(t)
			plain := d.Open(t)
			multiply(t, plain, newStore(t, plain))
			if analyzed {
				mustExec(t, plain, "ANALYZE TABLE oncemill_dedup")
			}
			config, err := mysql.ParseDSN(d.DSN())
			if err != nil {
				t.Fatal(err)
			}
			connector, err := mysql.NewConnector(config)
			if err != nil {
				t.Fatal(err)
			}
			var sent sqltest.Recorder
			doEverything(t, unmigrated(t, sent.Open(t, connector), Config{}), plain)
			explained := 0
			for _, statement := range sent.Statements() {
				if !strings.Contains(statement, "`oncemill_dedup`") || strings.Contains(statement, " VALUES (") {
					continue // it searches nothing
				}
				explained++
				for _, problem := range explain(t, plain, statement) {
					t.Errorf("%s, in\n%s", problem, sqltest.Form(statement))
				}
			}
			if explained < 12 {
				t.Errorf("only %d statements were explained", explained)
			}
		})
	}
}

// multiply makes some thousand records of one that is finished, and lets a few of them expire.
func multiply(t *testing.T, db *sql.DB, s *Store) {
	t.Helper()
	if err := dedupstore.SettleOne(t.Context(), s, runOf(t, s, "seed"), success); err != nil {
		t.Fatal(err)
	}
	all := columns + blobColumns
	for i := range 12 {
		key := fmt.Sprintf("CONCAT(record_key, '-%d')", i)
		id := "UNHEX(LEFT(SHA2(" + key + ", 256), 32))"
		mustExec(t, db, "INSERT INTO oncemill_dedup ("+all+") SELECT "+
			strings.Replace(all, "id, record_key", id+", "+key, 1)+" FROM oncemill_dedup")
	}
	mustExec(t, db, "UPDATE oncemill_dedup SET expires_at = 1 ORDER BY id LIMIT 10")
}

// doEverything calls all methods of the store, and of its inbox. Batches are as large as they get.
func doEverything(t *testing.T, s *Store, db *sql.DB) {
	ctx := t.Context()
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	var requests []dedupstore.Request
	for i := range maxBatch {
		requests = append(requests, request(fmt.Sprint("batch-", i)))
	}
	for range 2 { // the second time they are there
		var extensions []dedupstore.Extension
		var settlings []dedupstore.Settling
		var keys []dedupstore.Key
		for _, r := range s.Claim(ctx, requests) {
			must(r.Err)
			extensions = append(extensions, dedupstore.Extension{Claim: r.Answer.Claim, Lease: long})
			settlings = append(settlings, dedupstore.Settling{Claim: r.Answer.Claim, Settlement: dedupstore.Release{}})
			keys = append(keys, r.Answer.Claim.Key)
		}
		must(s.Extend(ctx, extensions)...)
		must(s.Settle(ctx, settlings)...)
		_, err := s.Look(ctx, keys)
		must(err)
		for i := range requests {
			requests[i].Owner += "again"
		}
	}
	success := success
	success.Outcome.Result = make([]byte, 2*largeBlob) // has a statement of its own
	c := runOf(t, s, "leased")
	must(dedupstore.SettleOne(ctx, s, c, success))
	must(s.NoteDuplicates(ctx, []dedupstore.Duplicates{{Key: c.Key, Count: 1, Last: time.Now()}}))

	inbox := s.Inbox()
	work := func(context.Context) (dedupstore.Settlement, error) { return success, nil }
	for _, lost := range []error{nil, errors.New("no answer")} {
		s.commit = func(ctx context.Context, tx *sql.Tx) error { return errors.Join(commit(ctx, tx), lost) }
		must(dedupstore.InTxOne(ctx, inbox, runOf(t, inbox, fmt.Sprint("inbox ", lost)), work))
	}
	s.commit = commit

	failed := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Retention: long}
	c = runOf(t, s, "changed")
	must(dedupstore.SettleOne(ctx, s, c, failed))
	for _, change := range []dedupstore.Change{dedupstore.Rerun{}, dedupstore.Forget{}} {
		found, err := s.Look(ctx, []dedupstore.Key{c.Key})
		must(err, s.Change(ctx, found[0], change))
	}
	for after := ""; ; {
		page, err := s.List(ctx, dedupstore.Filter{Since: time.Now(), ID: "none"}, after)
		must(err)
		_, err = s.Count(ctx, dedupstore.Filter{}, after)
		must(err)
		if after = page.Next; after == "" {
			break
		}
	}
	_, err := s.Check(ctx)
	must(err)
	removed, err := s.Clean(ctx, cleanBatch)
	if must(err); removed != 10 {
		t.Fatalf("%d records were removed, want 10", removed)
	}
	mustExec(t, db, "UPDATE oncemill_dedup SET expires_at = 1 ORDER BY id LIMIT 10") // for the plans
}

var limited = regexp.MustCompile(` LIMIT \d+$`)

// explain tells what is wrong with the plan of a statement.
func explain(t *testing.T, db *sql.DB, statement string) (problems []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "EXPLAIN "+strings.ReplaceAll(statement, "= ?", "= ''"))
	if err != nil {
		t.Fatalf("%v, in\n%s", err, statement)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	_, where, _ := strings.Cut(statement, " WHERE ")
	asked := strings.Count(where, "x'")
	for rows.Next() {
		values := make([]sql.NullString, len(names))
		into := make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		plan := map[string]string{}
		for i, name := range names {
			plan[name] = values[i].String
		}
		var read int
		fmt.Sscan(plan["rows"], &read)
		sorts := strings.Contains(plan["Extra"], "filesort") || strings.Contains(plan["Extra"], "temporary")
		inOrder := limited.MatchString(statement) && plan["key"] != "" && !sorts // it stops when it has enough
		if sorts || plan["type"] == "ALL" && read > 1 || read > asked && !inOrder {
			problems = append(problems, fmt.Sprintf("it asks for %d rows, and the plan is %v", asked, plan))
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return problems
}
