package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

func TestCheck_SaysWhatCanBeLost(t *testing.T) {
	t.Parallel()
	report, err := newStore(t, newDB(t)).Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Losses) != 1 || !strings.Contains(report.Losses[0], "innodb_flush_log_at_trx_commit is 2") {
		t.Errorf("of a server that does not flush Check says %q can be lost", report.Losses)
	}
}

func TestCheck_JudgesSettings(t *testing.T) {
	t.Parallel()
	good := settings{
		"version": "10.11.6-MariaDB-0+deb12u1", "read_only": "OFF", "innodb_read_only": "OFF",
		"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "ON", "log_bin": "ON", "sync_binlog": "1",
		"binlog_format": "ROW", "idle_transaction_timeout": "0",
		"max_allowed_packet": "16777216",
		"wsrep_on":           "OFF", "sql_select_limit": unlimited,
	}
	if err, warnings := good.problem(), good.report(16).Warnings; err != nil || len(warnings) > 0 {
		t.Errorf("good settings: %v, %q", err, warnings)
	}
	for _, test := range []struct {
		name, value, problem, warning string
		loses                         bool
	}{
		{name: "version", value: "8.0.36"},
		{name: "version", value: "8.4.0-commercial"},
		{name: "version", value: "11.4.2-MariaDB"},
		{name: "version", value: "5.7.44", problem: "version"},
		{name: "version", value: "10.5.23-MariaDB", problem: "version"},
		{name: "version", value: "", problem: "version"},
		{name: "sql_select_limit", value: "1", problem: "sql_select_limit"},
		{name: "sql_select_limit", value: "", problem: "sql_select_limit"},
		{name: "read_only", value: "ON", problem: "read_only"},
		{name: "super_read_only", value: "ON", problem: "read_only"},
		{name: "innodb_read_only", value: "ON", problem: "read_only"},
		{name: "binlog_format", value: "STATEMENT", problem: "binlog_format"},
		{name: "innodb_flush_log_at_trx_commit", value: "0", warning: "a crash of the server loses", loses: true},
		{name: "innodb_doublewrite", value: "OFF", warning: "innodb_doublewrite", loses: true},
		{name: "sync_binlog", value: "0", warning: "sync_binlog", loses: true},
		{name: "wsrep_on", value: "ON", warning: "same node"},
		{name: "idle_transaction_timeout", value: "3", warning: "idle_transaction_timeout is 3s"},
		{name: "max_allowed_packet", value: "1024", warning: "max_allowed_packet is 1024"},
	} {
		set := settings{}
		for name, value := range good {
			set[name] = value
		}
		set[test.name] = test.value
		what := test.name + "=" + test.value
		var setup *dedupstore.SetupError
		err := set.problem()
		if errors.As(err, &setup) != (test.problem != "") || setup != nil && setup.Subject != test.problem {
			t.Errorf("%s: %v, want a problem of %q", what, err, test.problem)
		}
		report := set.report(16)
		if test.warning != "" && (len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], test.warning)) {
			t.Errorf("%s: warnings %q, want one about %q", what, report.Warnings, test.warning)
		}
		if (len(report.Losses) > 0) != test.loses {
			t.Errorf("%s: losses %q", what, report.Losses)
		}
	}
	if warnings := good.report(1).Warnings; len(warnings) != 1 {
		t.Errorf("a pool of one connection: %q", warnings)
	}
	if warnings := good.report(0).Warnings; len(warnings) != 1 {
		t.Errorf("a pool without a limit: %q", warnings)
	}
}

// TestCheck_NeedsOneConnection: it must not wait for another one while it holds it.
func TestCheck_NeedsOneConnection(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	newStore(t, db)
	db.SetMaxOpenConns(1)
	s, err := New(db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	bounded, cancel := context.WithTimeout(t.Context(), testserver.WaitLimit)
	defer cancel()
	if _, err := s.Check(bounded); err != nil {
		t.Error(err)
	}
}

func TestStore_BadSetups(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ask := func(s *Store) error {
		_, err := dedupstore.ClaimOne(ctx, s, request("1"))
		return err
	}
	db := newDB(t)
	s := unmigrated(t, db, Config{})
	wantSetup(t, ask(s), `table "oncemill_dedup"`)
	_, err := s.Check(ctx)
	wantSetup(t, err, `table "oncemill_dedup"`)
	if plan, err := s.Plan(ctx); err != nil || plan.Found != 0 || plan.SQL == "" {
		t.Errorf("plan %+v, %v", plan, err)
	}
	for range 2 {
		if err := s.Migrate(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if plan, err := s.Plan(ctx); err != nil || plan.Found != version || plan.SQL != "" {
		t.Errorf("plan %+v, %v", plan, err)
	}
	for _, other := range []int{version - 1, version + 1} {
		mustExec(t, db, fmt.Sprintf("UPDATE oncemill_dedup_version SET version = %d", other))
		wantSetup(t, ask(unmigrated(t, db, Config{})), `table "oncemill_dedup"`)
	}
	wantSetup(t, s.Migrate(ctx), `table "oncemill_dedup"`)
	mustExec(t, db, fmt.Sprintf("UPDATE oncemill_dedup_version SET version = %d", version))
	mustExec(t, db, "ALTER TABLE oncemill_dedup ENGINE=Aria")
	_, err = s.Check(ctx)
	wantSetup(t, err, `table "oncemill_dedup"`)

	wantSetup(t, unmigrated(t, db, Config{Table: "effects"}).Migrate(ctx), `table "effects"`)

	lost := newDB(t)
	broken := newStore(t, lost)
	runOf(t, broken, "1")
	mustExec(t, lost, "DROP TABLE oncemill_dedup")
	wantSetup(t, ask(broken), `table "oncemill_dedup"`)
}

func TestStore_BadSessionsAndUsers(t *testing.T) {
	t.Parallel()
	d := mysqltest.Shared(t).NewDatabase(t)
	db := d.Open(t)
	newStore(t, db)
	ask := func(configure func(*mysql.Config)) error {
		_, err := dedupstore.ClaimOne(t.Context(), unmigrated(t, d.Open(t, configure), Config{}), request("1"))
		return err
	}
	wantSetup(t, ask(func(c *mysql.Config) { c.DBName = "" }), "database")
	wantSetup(t, ask(func(c *mysql.Config) { c.Params = map[string]string{"autocommit": "0"} }), "autocommit")
	wantSetup(t, ask(func(c *mysql.Config) { c.Params = map[string]string{"tx_read_only": "1"} }),
		`table "oncemill_dedup"`)

	reader := func(c *mysql.Config) { c.User, c.Passwd = "reader_"+c.DBName, "secret" }
	c, err := mysql.ParseDSN(d.DSN())
	if err != nil {
		t.Fatal(err)
	}
	user := "'reader_" + c.DBName + "'"
	mustExec(t, db, "CREATE USER "+user+" IDENTIFIED BY 'secret'")
	t.Cleanup(func() { mustExec(t, db, "DROP USER "+user) })
	mustExec(t, db, "GRANT SELECT ON "+c.DBName+".* TO "+user)
	wantSetup(t, ask(reader), `table "oncemill_dedup"`)
	_, err = unmigrated(t, d.Open(t, reader), Config{}).Check(t.Context())
	wantSetup(t, err, `table "oncemill_dedup"`)
	mustExec(t, db, "GRANT INSERT, UPDATE, DELETE ON "+c.DBName+".oncemill_dedup TO "+user)
	if err := ask(reader); err != nil {
		t.Errorf("a user who may not note scopes: %v", err)
	}
	s := unmigrated(t, d.Open(t, reader), Config{})
	const unnoticed = "whose name has changed is not noticed"
	report, err := s.Check(t.Context())
	if err != nil || !strings.Contains(strings.Join(report.Warnings, "; "), unnoticed) {
		t.Errorf("a user who may not note scopes: %v, %q", err, report.Warnings)
	}
	if err := claimtest.NoteScope(t.Context(), s); err == nil || !strings.Contains(err.Error(), "oncemill_dedup_scopes") {
		t.Errorf("a user who may not note scopes notes one: %v", err)
	}
	mustExec(t, db, "GRANT INSERT, UPDATE ON "+c.DBName+".oncemill_dedup_scopes TO "+user)
	if err := claimtest.NoteScope(t.Context(), s); err != nil {
		t.Error(err)
	}
	report, err = s.Check(t.Context())
	if err != nil || strings.Contains(strings.Join(report.Warnings, "; "), unnoticed) {
		t.Errorf("a user with the documented rights: %v, %q", err, report.Warnings)
	}
}

func TestNew_RefusesBadConfigs(t *testing.T) {
	t.Parallel()
	db := new(sql.DB)
	for field, err := range map[string]error{
		"db":           second(New(nil, Config{})),
		"Config.Table": second(New(db, Config{Table: "a`b"})),
	} {
		if invalid, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func second(_ *Store, err error) error { return err }

// TestStore_OddRecords: a record that another version wrote is left alone, and others of a batch are answered.
func TestStore_OddRecords(t *testing.T) {
	t.Parallel()
	for column, value := range map[string]string{"state": "'paused'", "stubs": "x'07'", "record_key": "'a:b:c:d'"} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			s := newStore(t, db)
			c := runOf(t, s, "odd")
			mustExec(t, db, "UPDATE oncemill_dedup SET "+column+" = "+value)
			results := s.Claim(t.Context(), []dedupstore.Request{request("odd"), request("fine")})
			if _, odd := errors.AsType[*dedupstore.RecordError](results[0].Err); !odd {
				t.Errorf("the claim: %+v", results[0])
			}
			if results[1].Answer.Status != dedupstore.AcquiredRun {
				t.Errorf("the claim beside it: %+v", results[1])
			}
			if column == "record_key" {
				return
			}
			err := dedupstore.SettleOne(t.Context(), s, c, success)
			if _, odd := errors.AsType[*dedupstore.RecordError](err); !odd {
				t.Errorf("the settlement: %v", err)
			}
			if _, err := s.List(context.Background(), dedupstore.Filter{}, ""); err == nil {
				t.Error("the list passes over it")
			}
		})
	}
}
