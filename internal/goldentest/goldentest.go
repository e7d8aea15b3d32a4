// Package goldentest has stores read records as an earlier version wrote them, byte for byte, and go on with them. The
// records are in testdata/golden of each store, in one file for each version that wrote other bytes.
package goldentest

import (
	"database/sql"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var write = flag.String("golden", "", "write testdata/golden/NAME first, with records as this version writes them")

// Run gives each file to read in a subtest. With -golden, dump makes a new one first, of a store that [Write] filled.
func Run(t *testing.T, dump func(t *testing.T) []byte, read func(t *testing.T, content []byte)) {
	t.Helper()
	folder := filepath.Join("testdata", "golden")
	if *write != "" {
		content := dump(t)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, *write), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	names, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(names) == 0 {
		t.Fatalf("files in %s: %q, %v, want one at least", folder, names, err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(name), func(t *testing.T) { read(t, content) })
	}
}

// Line is a line of a file for values that may be any bytes.
func Line(values ...string) string { return fmt.Sprintf("%+q\n", values) }

// Lines are the values of each line.
func Lines(t *testing.T, content []byte) (lines [][]string) {
	t.Helper()
	for line := range strings.Lines(string(content)) {
		var values []string
		rest := strings.Trim(line, "[]\n")
		for rest != "" {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			value, _ := strconv.Unquote(quoted) // it is quoted
			values, rest = append(values, value), strings.TrimPrefix(rest[len(quoted):], " ")
		}
		lines = append(lines, values)
	}
	return lines
}

// SQLite has the statements that make the tables of a database and their rows.
func SQLite(t *testing.T, db *sql.DB) []byte {
	t.Helper()
	file := texts(t, db, `SELECT sql || ';' FROM sqlite_schema WHERE sql IS NOT NULL`)
	for _, table := range texts(t, db, `SELECT name FROM sqlite_schema WHERE type = 'table'`) {
		columns := texts(t, db, `SELECT 'quote(' || name || ')' FROM pragma_table_info(?)`, table)
		rows := fmt.Sprintf(`SELECT 'INSERT INTO "%s" VALUES (' || %s || ');' FROM "%[1]s"`, table,
			strings.Join(columns, ` || ', ' || `))
		file = append(file, texts(t, db, rows)...)
	}
	return []byte(strings.Join(file, "\n") + "\n")
}

// PostgreSQL is a query for the statements that make the rows of a table.
func PostgreSQL(table string) string {
	return fmt.Sprintf(`SELECT format(E'INSERT INTO %[1]s SELECT (%%L::%[1]s).*;\n', r) FROM %[1]s r ORDER BY r::text`,
		table)
}

// MySQL has the statements that make the rows of a table.
func MySQL(t *testing.T, db *sql.DB, table string) []byte {
	t.Helper()
	columns := texts(t, db, `
		SELECT IF(data_type LIKE '%binary' OR data_type LIKE '%blob',
			concat('IF(', column_name, ' IS NULL, ''NULL'', concat(''x'', quote(hex(', column_name, '))))'),
			concat('quote(', column_name, ')'))
		FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position`,
		table)
	rows := texts(t, db, fmt.Sprintf("SELECT concat('INSERT INTO %s VALUES (', concat_ws(', ', %s), ');') FROM %[1]s",
		table, strings.Join(columns, ", ")))
	return []byte(strings.Join(rows, "\n") + "\n")
}

// texts are the texts that a query finds.
func texts(t *testing.T, db *sql.DB, query string, args ...any) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// century is how long leases and records last, so that those of a file do not expire.
const century = 100 * 365 * 24 * time.Hour

func request(id string) dedupstore.Request {
	return dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id},
		Owner: "owner-of-the-first-run", Lease: century, Retention: century, MaxAttempts: 5, Holder: "host:1",
		Fingerprint: dedupstore.Fingerprint{Scheme: "sha256", Sum: "abc"},
		Trace:       "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

// by returns the request with another owner, and a holder that people can read.
func by(owner string, r dedupstore.Request) dedupstore.Request {
	r.Owner, r.Holder = "owner-"+owner, "host:2"
	return r
}

// brief is a request whose lease has ended when anybody reads the file.
func brief(id string) dedupstore.Request {
	r := request(id)
	r.Lease = time.Millisecond
	return r
}

var (
	receipt = dedupstore.Produced{
		ID: "receipt-1", Topic: "receipts", Key: "k", Header: map[string]string{"why": "paid"}, Payload: []byte("1"),
	}
	succeeded = dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("paid")}
	failed    = dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "card refused"}
	noted     = time.UnixMilli(1_800_000_000_000)
)

func producing(o dedupstore.Outcome) dedupstore.Outcome {
	o.Produced = []dedupstore.Produced{receipt}
	return o
}

// Write makes a record in each state, and of each kind.
func Write(t *testing.T, s dedupstore.Inspector) {
	t.Helper()
	k := kit{t, s}
	k.extend(k.claim(request("held"), dedupstore.AcquiredRun).Claim)

	k.claim(brief("crashed"), dedupstore.AcquiredRun)

	again := request("released é")
	release := dedupstore.Release{Reason: "database is down", Took: time.Second}
	k.settle(k.claim(again, dedupstore.AcquiredRun).Claim, release)
	release.Reason, release.Uncounted = "shutdown", true
	k.settle(k.claim(by("of-the-second-run", again), dedupstore.AcquiredRun).Claim, release)

	k.finish(request("done"), dedupstore.Finish{Outcome: succeeded, Took: 2 * time.Second})
	duplicates := dedupstore.Duplicates{Key: request("done").Key, Count: 2, Last: noted, Retention: century}
	if err := s.NoteDuplicates(t.Context(), []dedupstore.Duplicates{duplicates}); err != nil {
		t.Fatal(err)
	}

	k.finish(brief("publishing"), dedupstore.Finish{Outcome: producing(succeeded)})

	c := k.finish(request("failed"), dedupstore.Finish{Outcome: producing(failed)})
	k.settle(c, dedupstore.Published{Retention: century})

	k.finish(request("rerun"), dedupstore.Finish{Outcome: failed})
	k.change("rerun", dedupstore.Rerun{})
}

// Read checks the records that Write made, and goes on with each.
func Read(t *testing.T, s dedupstore.Inspector) {
	t.Helper()
	k := kit{t, s}
	k.want("held", dedupstore.Running, func(r dedupstore.Record) bool { return r.Started && r.Holder == "host:1" })
	k.claim(by("that-has-to-wait", request("held")), dedupstore.Busy)
	c := k.claim(request("held"), dedupstore.AcquiredRun).Claim
	k.extend(c)
	k.settle(c, dedupstore.Finish{Outcome: succeeded, Retention: century})
	k.claim(by("that-had-to-wait", request("held")), dedupstore.Done)

	if c := k.claim(by("after-the-crash", request("crashed")), dedupstore.AcquiredRun).Claim; c.Attempt != 2 {
		t.Errorf("the run after a crash is attempt %d, want 2", c.Attempt)
	}

	k.want("released é", dedupstore.Retryable, func(r dedupstore.Record) bool {
		return r.Attempts == 1 && r.Returned == 1 && r.Outcome.Reason == "shutdown" && r.Holder == "host:2" &&
			len(r.History) == 1 && r.History[0].Reason == "database is down" && r.History[0].Holder == "host:1" &&
			r.History[0].Ended.Sub(r.History[0].Claimed) == time.Second
	})
	k.claim(by("of-the-third-run", request("released é")), dedupstore.AcquiredRun)

	k.want("done", dedupstore.Finished, func(r dedupstore.Record) bool {
		return r.Decided == r.Fence && r.Ended.Sub(r.Claimed) == 2*time.Second && r.Trace == request("done").Trace &&
			r.Duplicates == 2 && r.LastDuplicate.Equal(noted)
	})
	if o := k.claim(by("of-a-duplicate", request("done")), dedupstore.Done).Outcome; string(o.Result) != "paid" {
		t.Errorf("the outcome is %+v, want what it was", o)
	}
	other := by("of-other-content", request("done"))
	other.Fingerprint.Sum = "other"
	k.claim(other, dedupstore.Mismatch)

	a := k.claim(by("that-publishes", request("publishing")), dedupstore.AcquiredPublish)
	if p := a.Outcome.Produced; len(p) != 1 || p[0].ID != receipt.ID || p[0].Topic != receipt.Topic ||
		p[0].Key != receipt.Key || p[0].Header["why"] != "paid" || string(p[0].Payload) != "1" {
		t.Errorf("what is to be published is %+v, want %+v", p, receipt)
	}
	k.settle(a.Claim, dedupstore.Published{Retention: century})

	k.want("failed", dedupstore.Finished, func(r dedupstore.Record) bool {
		return r.Outcome.Kind == dedupstore.Failed && r.Outcome.Reason == failed.Reason &&
			len(r.Outcome.Produced) == 1 && r.Outcome.Produced[0].ID == receipt.ID
	})
	k.change("failed", dedupstore.Rerun{})
	k.claim(by("of-the-rerun", request("failed")), dedupstore.AcquiredRun)

	k.want("rerun", dedupstore.Retryable, func(r dedupstore.Record) bool { return r.Reruns == 1 })
	k.claim(by("of-another-rerun", request("rerun")), dedupstore.AcquiredRun)
}

// A kit is a store and the test that uses it.
type kit struct {
	t *testing.T
	s dedupstore.Inspector
}

func (k kit) claim(r dedupstore.Request, want dedupstore.Status) dedupstore.Answer {
	k.t.Helper()
	a, err := dedupstore.ClaimOne(k.t.Context(), k.s, r)
	if err != nil || a.Status != want {
		k.t.Fatalf("%s: a claim was answered %q (found %q), %v, want %q", r.Key.ID, a.Status, a.Found, err, want)
	}
	return a
}

func (k kit) extend(c dedupstore.Claim) {
	k.t.Helper()
	x := dedupstore.Extension{Claim: c, Lease: century, Started: true}
	if err := dedupstore.ExtendOne(k.t.Context(), k.s, x); err != nil {
		k.t.Fatalf("%s: a heartbeat: %v", c.Key.ID, err)
	}
}

func (k kit) settle(c dedupstore.Claim, settlement dedupstore.Settlement) {
	k.t.Helper()
	if err := dedupstore.SettleOne(k.t.Context(), k.s, c, settlement); err != nil {
		k.t.Fatalf("%s: %T: %v", c.Key.ID, settlement, err)
	}
}

// finish claims and settles.
func (k kit) finish(r dedupstore.Request, f dedupstore.Finish) dedupstore.Claim {
	k.t.Helper()
	c := k.claim(r, dedupstore.AcquiredRun).Claim
	f.Retention = century
	k.settle(c, f)
	return c
}

func (k kit) look(id string) dedupstore.Record {
	k.t.Helper()
	records, err := k.s.Look(k.t.Context(), []dedupstore.Key{request(id).Key})
	if err != nil {
		k.t.Fatal(err)
	}
	return records[0]
}

func (k kit) want(id string, state dedupstore.State, met func(dedupstore.Record) bool) {
	k.t.Helper()
	if r := k.look(id); r.State != state || !met(r) {
		k.t.Errorf("%s looks like %+v", id, r)
	}
}

func (k kit) change(id string, c dedupstore.Change) {
	k.t.Helper()
	if err := k.s.Change(k.t.Context(), k.look(id), c); err != nil {
		k.t.Fatalf("%s: %T: %v", id, c, err)
	}
}
