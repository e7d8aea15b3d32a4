package pgstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/txctx"
)

func TestNew_NamesFieldAndValue(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for field, cfg := range map[string]Config{
		"Config.Schema": {Schema: `a"b`}, "Config.Table": {Table: "1a"},
		"Config.Isolation": {Isolation: pgx.ReadUncommitted},
	} {
		if _, err := New(pool, cfg); !isInvalid(err, field) {
			t.Errorf("%s: New returned %v", field, err)
		}
	}
	if _, err := New(nil, Config{}); !isInvalid(err, "pool") {
		t.Errorf("without a pool New returned %v", err)
	}
}

func TestMigrate_MayBeRepeatedAndRaced(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := unmigrated(t, pool, Config{Schema: "Mixed_" + pool.Config().ConnConfig.RuntimeParams["search_path"],
		Table: "Records"})
	t.Cleanup(func() { mustExec(t, pool, `DROP SCHEMA "`+s.cfg.Schema+`" CASCADE`) })
	var group sync.WaitGroup
	errs := make([]error, 5)
	for i := range errs {
		group.Go(func() { errs[i] = s.Migrate(t.Context()) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	if _, err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	mustExec(t, pool, s.SQL()) // for tools: it may be repeated, too
	claim(t, s, request("1"), dedupstore.Busy)
}

func TestMigrate_MakesWhatSomebodyDropped(t *testing.T) {
	t.Parallel()
	for _, drop := range []string{
		`TABLE oncemill_dedup`, `TABLE oncemill_dedup_beats`, `TABLE oncemill_dedup_duplicates`,
		`TABLE oncemill_dedup_scopes`,
		`INDEX oncemill_dedup_clean`,
		`INDEX oncemill_dedup_beats_clean`,
	} {
		t.Run(drop, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			s := newStore(t, pool, Config{})
			mustExec(t, pool, `DROP `+drop)
			if err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustExec(t, pool, `DROP `+drop) // it is there again
		})
	}
}

// TestMigrate_MakesWhatIsMissingWhereTheTablesAre has somebody make a schema that the search path leads to first: an
// empty table there would hide the records.
func TestMigrate_MakesWhatIsMissingWhereTheTablesAre(t *testing.T) {
	t.Parallel()
	for _, missing := range []string{`DROP INDEX oncemill_dedup_clean`,
		`UPDATE oncemill_dedup_settings SET version = 1`} {
		t.Run(missing, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			claim(t, newStore(t, pool, Config{}), request("1"), dedupstore.AcquiredRun)
			schema := pool.Config().ConnConfig.RuntimeParams["search_path"]
			first := schema + "_first"
			mustExec(t, pool, `CREATE SCHEMA `+first)
			t.Cleanup(func() { mustExec(t, pool, `DROP SCHEMA `+first+` CASCADE`) })
			mustExec(t, pool, missing)
			s := newStore(t, poolIn(t, first+", "+schema), Config{})
			claim(t, s, request("1"), dedupstore.Busy)
			mustExec(t, pool, missing)
		})
	}
}

func TestMigrate_LeavesOthersTablesAlone(t *testing.T) {
	t.Parallel()
	s := unmigrated(t, newPool(t), Config{Table: "effects"})
	if err := s.Migrate(t.Context()); schemaProblem(err, "no table of this package") != nil {
		t.Error(schemaProblem(err, "no table of this package"))
	}
}

// schemaProblem returns what is wrong with an error that should be a SetupError that says so.
func schemaProblem(err error, says string) error {
	schema, ok := errors.AsType[*dedupstore.SetupError](err)
	if !ok || !strings.Contains(schema.Error(), says) {
		return fmt.Errorf("the error is %w, want a SetupError that says %q", err, says)
	}
	return nil
}

func TestStore_SaysWhatToDoWithoutTables(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := unmigrated(t, pool, Config{})
	wantEverywhere(t, s, "call Migrate")
	if _, err := s.Check(t.Context()); schemaProblem(err, "call Migrate") != nil {
		t.Error(schemaProblem(err, "call Migrate"))
	}
}

// wantEverywhere wants each operation to fail with an error that says something.
func wantEverywhere(t *testing.T, s *Store, says string) {
	t.Helper()
	r := request("1")
	c := dedupstore.Claim{Key: r.Key, Owner: r.Owner, Fence: 1, Attempt: 1, Lease: long, Retention: long}
	_, claimed := dedupstore.ClaimOne(t.Context(), s, r)
	_, cleaned := s.Clean(t.Context(), 1)
	work := func(context.Context) (dedupstore.Settlement, error) {
		t.Error("work was called")
		return success, nil
	}
	for what, err := range map[string]error{
		"Claim": claimed, "Extend": beat(t.Context(), s, c, long),
		"Settle":        dedupstore.SettleOne(t.Context(), s, c, success),
		"Clean":         cleaned,
		"InTx":          dedupstore.InTxOne(t.Context(), s.Inbox(), c, work),
		"InTx with SQL": dedupstore.InTxOne(t.Context(), s.InboxSQL(), c, work),
	} {
		if problem := schemaProblem(err, says); problem != nil {
			t.Errorf("%s: %v", what, problem)
		}
	}
	until(t, "all connections to be given back", func() bool { return s.pool.Stat().AcquiredConns() == 0 })
}

func TestCheck_SaysWhatToGrant(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	newStore(t, pool, Config{})
	schema := pool.Config().ConnConfig.RuntimeParams["search_path"]
	user := fmt.Sprintf("clerk_%d_%d", os.Getpid(), schemas.Add(1))
	mustExec(t, pool, `CREATE ROLE `+user+` LOGIN`)
	t.Cleanup(func() {
		mustExec(t, pool, `DROP OWNED BY `+user)
		mustExec(t, pool, `DROP ROLE `+user)
	})
	s := unmigrated(t, poolIn(t, schema, func(c *pgxpool.Config) { c.ConnConfig.User = user }), Config{})
	wantEverywhere(t, s, "grant the user USAGE on its schema") // without, the table does not exist to PostgreSQL
	if _, err := s.Check(t.Context()); schemaProblem(err, "grant the user USAGE on its schema") != nil {
		t.Error(schemaProblem(err, "grant the user USAGE on its schema"))
	}
	mustExec(t, pool, `GRANT USAGE ON SCHEMA `+schema+` TO `+user)
	wantEverywhere(t, s, "see Migrate for what it has to be granted")
	_, err := s.Check(t.Context())
	for _, grant := range []string{
		`GRANT SELECT, INSERT, UPDATE, DELETE ON "oncemill_dedup" TO "` + user + `"`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON "oncemill_dedup_beats" TO "` + user + `"`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON "oncemill_dedup_duplicates" TO "` + user + `"`,
		`GRANT SELECT ON "oncemill_dedup_settings" TO "` + user + `"`,
	} {
		if problem := schemaProblem(err, grant); problem != nil {
			t.Fatal(problem)
		}
		mustExec(t, pool, grant) // what it says is what it takes
	}
	report, err := s.Check(t.Context())
	if err != nil || !strings.Contains(strings.Join(report.Warnings, "; "), `"oncemill_dedup_scopes" is missing or may`) {
		t.Errorf("without the right on scopes: %v, %q", err, report.Warnings)
	}
	if err := claimtest.NoteScope(t.Context(), s); schemaProblem(err, "see Migrate for what it has to be granted") != nil {
		t.Error(err)
	}
	claim(t, s, request("without"), dedupstore.AcquiredRun)
	mustExec(t, pool, `GRANT SELECT, INSERT, UPDATE ON "oncemill_dedup_scopes" TO "`+user+`"`)
	if err := claimtest.NoteScope(t.Context(), s); err != nil {
		t.Error(err)
	}
	report, err = s.Check(t.Context())
	if err != nil || strings.Contains(strings.Join(report.Warnings, "; "), "oncemill_dedup_scopes") {
		t.Errorf("with the documented rights: %v, %q", err, report.Warnings)
	}
	c := runOf(t, s.Inbox(), "1")
	if err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(context.Context) (dedupstore.Settlement, error) {
		return success, nil
	}); err != nil {
		t.Error(err)
	}
	if _, err := s.Clean(t.Context(), 1); err != nil {
		t.Error(err)
	}
	mustExec(t, pool, `REVOKE UPDATE ON oncemill_dedup FROM `+user)
	if _, err := s.Check(t.Context()); schemaProblem(err, `GRANT SELECT, INSERT, UPDATE, DELETE ON`) != nil {
		t.Error(schemaProblem(err, `GRANT SELECT, INSERT, UPDATE, DELETE ON`))
	}
	for range 2 {
		if a, err := dedupstore.ClaimOne(t.Context(), s, request("2")); schemaProblem(err,
			"see Migrate for what it has to be granted") != nil {
			t.Errorf("a claim that could not be settled was answered %q, %v", a.Status, err)
		}
	}
}

// TestClaim_AnOlderSchemaGrantsNothing has a program that was started before somebody called Migrate, and asked no
// Check.
func TestClaim_AnOlderSchemaGrantsNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	mustExec(t, pool, `ALTER TABLE oncemill_dedup DROP COLUMN crashes`)
	mustExec(t, pool, `UPDATE oncemill_dedup_settings SET version = 6`)
	for name, form := range map[string]dedupstore.Store{"leased": s, "inbox": s.Inbox()} {
		for range 2 {
			a, err := dedupstore.ClaimOne(t.Context(), form, request(name))
			if schemaProblem(err, "call Migrate") != nil {
				t.Errorf("%s: a claim was answered %q, %v, want that Migrate is missing", name, a.Status, err)
			}
			for _, r := range form.Claim(t.Context(),
				[]dedupstore.Request{request(name + "-1"), request(name + "-2")}) {
				if schemaProblem(r.Err, "call Migrate") != nil {
					t.Errorf("%s: a claim of two was answered %q, %v, want that Migrate is missing", name,
						r.Answer.Status, r.Err)
				}
			}
		}
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	runOf(t, s, "leased")
}

func TestCheck_ComparesVersions(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	check := func(says string) {
		t.Helper()
		_, err := s.Check(t.Context())
		if says == "" && err != nil {
			t.Errorf("Check returned %v", err)
		} else if says != "" && schemaProblem(err, says) != nil {
			t.Error(schemaProblem(err, says))
		}
	}
	check("")
	mustExec(t, pool, `UPDATE oncemill_dedup_settings SET version = 99`)
	check("")
	mustExec(t, pool, `UPDATE oncemill_dedup_settings SET version = 1`)
	check("has schema version 1, want at least 8: call Migrate")
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("")
	mustExec(t, pool, `DELETE FROM oncemill_dedup_settings`)
	check("is incomplete: call Migrate")
}

func TestCheck_ReportsWhatAnOperatorShouldKnow(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	newStore(t, pool, Config{})
	schema := pool.Config().ConnConfig.RuntimeParams["search_path"]
	s := unmigrated(t, poolIn(t, schema, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		c.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "1s"
		// not for Migrate, which may take longer on a busy machine
		c.ConnConfig.RuntimeParams["statement_timeout"] = "900ms"
	}), Config{})
	report, err := s.Check(t.Context())
	if err != nil || report.Store != "postgresql" || report.Version == "" || report.Durability == "" {
		t.Errorf("Check returned %+v, %v", report, err)
	}
	for _, setting := range []string{"fsync", "synchronous_commit", "default_transaction_isolation",
		"idle_in_transaction_session_timeout", "statement_timeout"} {
		if !slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.HasPrefix(w, setting+" is ") }) {
			t.Errorf("nothing warns of %s: %q", setting, report.Warnings)
		}
	}
	reading := poolIn(t, schema, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	_, err = unmigrated(t, reading, Config{}).Check(t.Context())
	if server, ok := errors.AsType[*dedupstore.SetupError](err); !ok ||
		!strings.Contains(server.Problem, "connect to the primary") {
		t.Errorf("on a server that only reads Check returned %v", err)
	}
}

// Of unlogged tables nothing survives a crash, and Check must not say that it does.
func TestCheck_WarnsOfUnloggedTables(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	warned := func() (tables []string, durability string) {
		t.Helper()
		report, err := s.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range report.Warnings {
			if table, _, unlogged := strings.Cut(w, " is UNLOGGED"); unlogged {
				tables = append(tables, table)
			}
		}
		return tables, report.Durability
	}
	if tables, durability := warned(); len(tables) > 0 || strings.Contains(durability, "UNLOGGED") {
		t.Errorf("Check warns of %q, and says %q, of tables that are logged", tables, durability)
	}
	for i, table := range []string{"oncemill_dedup", "oncemill_dedup_beats"} {
		mustExec(t, pool, `ALTER TABLE `+table+` SET UNLOGGED`)
		if tables, _ := warned(); len(tables) != i+1 || !strings.Contains(tables[i], table) {
			t.Errorf("%s is unlogged, and Check warns of %q", table, tables)
		}
	}
}

// TestStore_CommitsWaitForTheDisk looks at what is set in the transactions, as a crash is hard to time.
func TestStore_CommitsWaitForTheDisk(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
	s := newStore(t, pool, Config{})
	mustExec(t, pool, `CREATE TABLE seen (what text, setting text)`)
	mustExec(t, pool, `CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO seen VALUES (NEW.state, current_setting('synchronous_commit')); RETURN NULL; END $$`)
	mustExec(t, pool, `CREATE TRIGGER look AFTER INSERT OR UPDATE ON oncemill_dedup
		FOR EACH ROW EXECUTE FUNCTION look()`)
	want := func(settings ...string) {
		t.Helper()
		rows, _ := pool.Query(t.Context(), `DELETE FROM seen RETURNING what || ' ' || setting`)
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		slices.Sort(got)
		if slices.Sort(settings); err != nil || !slices.Equal(got, settings) {
			t.Errorf("the transactions had %q (%v), want %q", got, err, settings)
		}
	}
	if err := dedupstore.SettleOne(t.Context(), s, runOf(t, s, "leased"), success); err != nil {
		t.Fatal(err)
	}
	want("running on", "done on")
	c := runOf(t, s.Inbox(), "inbox")
	if err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, paying(c)); err != nil {
		t.Fatal(err)
	}
	want("running off", "done on")

	// An acknowledged outcome is on disk, whatever the handler has set for its effects.
	const hasty = `SET LOCAL synchronous_commit = off`
	for name, inbox := range map[string]dedupstore.Transactor{"pgx": s.Inbox(), "sql": s.InboxSQL()} {
		c := runOf(t, inbox, "hasty-"+name)
		if err := dedupstore.InTxOne(t.Context(), inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
			return success, map[string]func(context.Context) handle{"pgx": onPgx, "sql": onSQL}[name](ctx).exec(ctx,
				hasty)
		}); err != nil {
			t.Fatal(err)
		}
		want("running off", "done on")
	}
	c = runOf(t, s, "joined")
	tx := begin(t, pool, "")
	_, err := tx.Exec(t.Context(), hasty)
	if err := errors.Join(err, s.Join(txctx.With(t.Context(), &c), tx), tx.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	want("running on", "done on")
}

// A record or a heartbeat that the user does not see would be taken for gone, or for locked by somebody, for ever.
func TestCheck_RefusesRowsThatAreHidden(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	newStore(t, pool, Config{})
	schema := pool.Config().ConnConfig.RuntimeParams["search_path"]
	user := fmt.Sprintf("tenant_%d_%d", os.Getpid(), schemas.Add(1))
	mustExec(t, pool, `CREATE ROLE `+user+` LOGIN`)
	t.Cleanup(func() {
		mustExec(t, pool, `DROP OWNED BY `+user)
		mustExec(t, pool, `DROP ROLE `+user)
	})
	mustExec(t, pool, `GRANT USAGE ON SCHEMA `+schema+` TO `+user)
	mustExec(t, pool, `GRANT ALL ON ALL TABLES IN SCHEMA `+schema+` TO `+user)
	for _, cfg := range []Config{{}, {Schema: schema}} {
		s := unmigrated(t, poolIn(t, schema, func(c *pgxpool.Config) { c.ConnConfig.User = user }), cfg)
		for _, table := range []string{"oncemill_dedup", "oncemill_dedup_beats", "oncemill_dedup_duplicates",
			"oncemill_dedup_settings"} {
			for _, step := range []struct {
				statement string
				hidden    bool
			}{
				{`ALTER TABLE ` + table + ` ENABLE ROW LEVEL SECURITY`, true},
				{`CREATE POLICY other ON ` + table + ` TO pg_monitor USING (true)`, true},
				{`CREATE POLICY reads ON ` + table + ` FOR SELECT USING (true)`, true},
				{`CREATE POLICY few ON ` + table + ` USING (current_user = 'x')`, true},
				{`CREATE POLICY inserts ON ` + table + ` USING (true) WITH CHECK (false)`, true},
				{`CREATE POLICY everything ON ` + table + ` TO ` + user + ` USING (true)`, false},
				{`CREATE POLICY others ON ` + table + ` AS RESTRICTIVE TO pg_monitor USING (false)`, false},
				{`CREATE POLICY but ON ` + table + ` AS RESTRICTIVE USING (true)`, true},
				{`DROP POLICY other ON ` + table + `; DROP POLICY reads ON ` + table + `; DROP POLICY few ON ` + table +
					`; DROP POLICY inserts ON ` + table + `; DROP POLICY everything ON ` + table +
					`; DROP POLICY others ON ` + table +
					`; DROP POLICY but ON ` + table, true},
				{`ALTER TABLE ` + table + ` DISABLE ROW LEVEL SECURITY`, false},
			} {
				mustExec(t, pool, step.statement)
				if _, err := s.Check(t.Context()); step.hidden && schemaProblem(err, "has row-level security") != nil ||
					!step.hidden && err != nil {
					t.Errorf("after %s Check says %v, although rows are hidden: %v", step.statement, err, step.hidden)
				}
			}
		}
	}
}

// Batches of claims take a lock a key.
func TestCheck_WarnsOfTooFewLocks(t *testing.T) {
	t.Parallel()
	for locks, want := range map[int]bool{1000: true, 6400: false} {
		got := slices.ContainsFunc(server{locks: locks}.report().Warnings, func(w string) bool {
			return strings.HasPrefix(w, "max_locks_per_transaction is ")
		})
		if got != want {
			t.Errorf("room for %d locks: warned %t, want %t", locks, got, want)
		}
	}
}
