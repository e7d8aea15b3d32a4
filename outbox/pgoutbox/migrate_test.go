package pgoutbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

func TestNew_ErrorNamesTheField(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	long := strings.Repeat("x", 41)
	for _, tc := range []struct {
		field string
		cfg   pgoutbox.Config
	}{
		{"Config.Table", pgoutbox.Config{Table: `x"y`}},
		{"Config.Table", pgoutbox.Config{Table: "1st"}},
		{"Config.Table", pgoutbox.Config{Table: "public.x"}},
		{"Config.Table", pgoutbox.Config{Table: "é"}},
		{"Config.Table", pgoutbox.Config{Table: long}},
		{"Config.Schema", pgoutbox.Config{Schema: "a b"}},
		{"Config.Schema", pgoutbox.Config{Schema: long}},
		{"Config.SkipDead", pgoutbox.Config{SkipDead: true}},
	} {
		_, err := pgoutbox.New(pool, tc.cfg)
		if e, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || e.Field != tc.field {
			t.Errorf("%+v: error %v", tc.cfg, err)
		}
	}
	if _, err := pgoutbox.New(nil, pgoutbox.Config{}); err == nil {
		t.Error("nil pool: no error")
	}
}

func TestNew_TwoTablesAreTwoOutboxes(t *testing.T) {
	t.Parallel()
	first, pool := newBox(t)
	second := boxIn(t, pool, pgoutbox.Config{Schema: "Other_" + schemaOf(t, pool), Table: "Other_1"})
	t.Cleanup(func() { mustExec(t, pool, `DROP SCHEMA "Other_`+schemaOf(t, pool)+`" CASCADE`) })
	write(t, second, pool, message("1"))
	if a, b := stats(t, first).Pending, stats(t, second).Pending; a != 0 || b != 1 {
		t.Errorf("%d and %d pending rows, want 0 and 1", a, b)
	}
	if rows := lease(t, second, "t", time.Minute); len(rows) != 1 {
		t.Errorf("%d rows", len(rows))
	}
}

func schemaOf(t *testing.T, pool *pgxpool.Pool) (name string) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), `SELECT current_schema`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestMigrate_SeveralAtOnceAndAgain(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		pool := newPool(t)
		box := unmigrated(t, pool, pgoutbox.Config{Ordered: ordered})
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 3 {
					if err := box.Migrate(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		write(t, box, pool, message("1"))
		mustExec(t, pool, box.SQL(), pgx.QueryExecModeSimpleProtocol) // what a tool would run may be repeated too
	}
}

func TestSQL_RepeatedWaitsForOpenTransactionsNoLongerThanItsLockTimeout(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	open := begin(t, pool)
	publish(t, box, open, message("1"))
	_, err := pool.Exec(t.Context(), "SET LOCAL lock_timeout = '50ms';\n"+box.SQL(), pgx.QueryExecModeSimpleProtocol)
	const lockNotAvailable = "55P03"
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != lockNotAvailable {
		t.Errorf("error %v, want that the lock was not available", err)
	}
	publish(t, box, open, message("2"))
	commit(t, open)
	mustExec(t, pool, box.SQL(), pgx.QueryExecModeSimpleProtocol)
	if n := stats(t, box).Pending; n != 2 {
		t.Errorf("%d pending rows, want 2", n)
	}
}

func TestMigrate_UnderLoadDoesNotDisturb(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	b := &relaytest.Broker{}
	stop := relaytest.Start(t, box, b, relaytest.Quick())
	open := begin(t, pool) // a business transaction that stays open, with a row and its locks
	publish(t, box, open, message("open"))
	ended := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-ended:
				return
			default:
				write(t, box, pool, message(fmt.Sprint(i)))
			}
		}
	})
	for range 20 {
		began := time.Now()
		if err := box.Migrate(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > time.Minute { // a lock that it waited for would be there until the end
			t.Errorf("a migration of what is there took %v", d)
		}
	}
	close(ended)
	all.Wait()
	commit(t, open)
	relaytest.Eventually(t, "the outbox is empty", func() bool { return stats(t, box).Pending == 0 })
	stop()
	for id, n := range b.Copies() {
		if n != 1 {
			t.Errorf("%s was published %d times", id, n)
		}
	}
}

func TestCheck_WrongTablesAreNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, spoil, want string
		cfg               pgoutbox.Config
		migrate           bool // Migrate says so too
	}{
		{name: "missing", spoil: `DROP TABLE oncemill_outbox, oncemill_outbox_lease, oncemill_outbox_settings`, want: "call Migrate"},
		{name: "older", spoil: `UPDATE oncemill_outbox_settings SET version = 0`, want: "has schema version 0, want at least 2: call Migrate"},
		{name: "incomplete", spoil: `DELETE FROM oncemill_outbox_settings`, want: "call Migrate"},
		{name: "ordered", cfg: pgoutbox.Config{Ordered: true}, want: "Config.Ordered is true", migrate: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, pool := newBox(t)
			if tc.spoil != "" {
				mustExec(t, pool, tc.spoil)
			}
			box := unmigrated(t, pool, tc.cfg)
			_, leaseErr := box.Lease(t.Context(), outbox.LeaseRequest{Token: "t", Limit: 1, Lease: time.Minute})
			tx := begin(t, pool)
			errs := map[string]error{"Lease": leaseErr, "Publish": box.In(tx).Publish(t.Context(), message("1"))}
			rollback(t, tx)
			migrateErr := box.Migrate(t.Context())
			if tc.migrate {
				errs["Migrate"] = migrateErr
			} else if migrateErr != nil {
				t.Errorf("Migrate: %v", migrateErr)
			}
			for what, err := range errs {
				if e, ok := errors.AsType[*dedupstore.SetupError](err); !ok || !strings.Contains(err.Error(), tc.want) ||
					e.Subject != `outbox table "oncemill_outbox"` {
					t.Errorf("%s: error %v, want one that says %q", what, err, tc.want)
				}
			}
			if !tc.migrate {
				write(t, box, pool, message("2"))
			}
		})
	}
}

func TestMigrate_MakesATableThatSomebodyDropped(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	mustExec(t, pool, `DROP TABLE oncemill_outbox_lease`)
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, box, pool, message("1"))
	if rows := lease(t, box, "t", time.Minute); len(rows) != 1 {
		t.Errorf("%d rows, want 1", len(rows))
	}
}

func TestMigrate_MakesWhatIsMissingWhereTheTablesAre(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	schema := schemaOf(t, pool)
	box := boxIn(t, pool, pgoutbox.Config{Ordered: true})
	write(t, box, pool, message("1"))
	first := schema + "_first"
	mustExec(t, pool, `CREATE SCHEMA `+first)
	t.Cleanup(func() { mustExec(t, pool, `DROP SCHEMA `+first+` CASCADE`) })
	mustExec(t, pool, `DROP INDEX oncemill_outbox_dead`)
	mustExec(t, pool, `UPDATE oncemill_outbox_settings SET version = 0`)
	path := poolIn(t, first+", "+schema) // as when somebody has made a schema of a user's own name
	box = boxIn(t, path, pgoutbox.Config{Ordered: true})
	mustExec(t, pool, `DROP INDEX oncemill_outbox_dead`) // it is there again
	if n := stats(t, box).Pending; n != 1 {
		t.Errorf("%d pending rows, want the one that was there", n)
	}
}

// Its indexes keep their names, so a new table cannot have them. Migrate must not say that everything is there.
func TestMigrate_SaysThatTheTableWasRenamed(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	mustExec(t, pool, `ALTER TABLE oncemill_outbox RENAME TO other`)
	if err := box.Migrate(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestMigrate_TableOfSomebodyElseIsLeftAlone(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	err := unmigrated(t, pool, pgoutbox.Config{Table: "orders"}).Migrate(t.Context())
	if _, ok := errors.AsType[*dedupstore.SetupError](err); !ok {
		t.Errorf("error %v", err)
	}
}

func TestCheck_MissingPrivilegeIsNamed(t *testing.T) {
	t.Parallel()
	_, pool := newBox(t)
	schema := schemaOf(t, pool)
	user := schema + "_user"
	mustExec(t, pool, `CREATE ROLE `+user+` LOGIN`)
	t.Cleanup(func() { mustExec(t, pool, `DROP OWNED BY `+user); mustExec(t, pool, `DROP ROLE `+user) })
	poor := poolIn(t, schema, func(c *pgxpool.Config) { c.ConnConfig.User = user })
	box := unmigrated(t, poor, pgoutbox.Config{})
	if _, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: "t", Limit: 1, Lease: time.Minute}); err == nil || !strings.Contains(err.Error(), "USAGE on its schema") {
		t.Errorf("error %v, want one that names USAGE: to PostgreSQL the table does not exist", err)
	}
	mustExec(t, pool, `GRANT USAGE ON SCHEMA `+schema+` TO `+user)
	check := func(want bool) {
		t.Helper()
		_, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: "t", Limit: 1, Lease: time.Minute})
		tx := begin(t, poor)
		defer tx.Rollback(context.Background())
		for _, err := range []error{err, box.In(tx).Publish(t.Context(), message("1"))} {
			if denied := err != nil && strings.Contains(err.Error(), `lacks a privilege on outbox table "oncemill_outbox"`); denied != want {
				t.Errorf("error %v, want a missing privilege: %v", err, want)
			}
		}
	}
	check(true)
	mustExec(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON oncemill_outbox, oncemill_outbox_lease TO `+user)
	mustExec(t, pool, `GRANT SELECT ON oncemill_outbox_settings TO `+user)
	check(false)
}

// Rows that the relay's user does not see would wait for ever, and nobody be told.
func TestLease_RefusesATableThatHidesRows(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	schema := schemaOf(t, pool)
	user := schema + "_user"
	mustExec(t, pool, `CREATE ROLE `+user+` LOGIN`)
	t.Cleanup(func() { mustExec(t, pool, `DROP OWNED BY `+user); mustExec(t, pool, `DROP ROLE `+user) })
	mustExec(t, pool, `GRANT USAGE ON SCHEMA `+schema+` TO `+user)
	mustExec(t, pool, `GRANT ALL ON ALL TABLES IN SCHEMA `+schema+` TO `+user)
	mustExec(t, pool, `ALTER TABLE oncemill_outbox ENABLE ROW LEVEL SECURITY`)
	mustExec(t, pool, `CREATE POLICY own ON oncemill_outbox USING (topic = 'mine')`)
	write(t, box, pool, message("1"))
	tenant := poolIn(t, schema, func(c *pgxpool.Config) { c.ConnConfig.User = user })
	hidden := unmigrated(t, tenant, pgoutbox.Config{})
	mine := message("2")
	mine.Topic = "mine"
	write(t, hidden, tenant, mine) // who only writes needs no more than that
	_, err := hidden.Lease(t.Context(), outbox.LeaseRequest{Token: "t", Limit: 10, Lease: time.Minute})
	if e, ok := errors.AsType[*dedupstore.SetupError](err); !ok || !strings.Contains(e.Error(), "row-level security") ||
		e.Subject != `outbox table "oncemill_outbox"` {
		t.Errorf("error %v, want one that says that rows are hidden", err)
	}
	mustExec(t, pool, `CREATE POLICY relay ON oncemill_outbox TO `+user+` USING (true)`)
	if rows := lease(t, hidden, "t", time.Minute); len(rows) != 2 {
		t.Errorf("%d rows, want both", len(rows))
	}
}

func TestMigrate_RightsThatTheDocsNameAreEnough(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]pgoutbox.Config{"unordered": {}, "ordered": {Ordered: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			boxIn(t, pool, cfg)
			schema := schemaOf(t, pool)
			user := schema + "_user"
			mustExec(t, pool, `CREATE ROLE `+user+` LOGIN`)
			t.Cleanup(func() { mustExec(t, pool, `DROP OWNED BY `+user); mustExec(t, pool, `DROP ROLE `+user) })
			mustExec(t, pool, `GRANT USAGE ON SCHEMA `+schema+` TO `+user)
			mustExec(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON oncemill_outbox, oncemill_outbox_lease TO `+user)
			mustExec(t, pool, `GRANT SELECT ON oncemill_outbox_settings TO `+user)
			if cfg.Ordered {
				mustExec(t, pool, `GRANT USAGE ON SEQUENCE oncemill_outbox_places TO `+user)
			}
			poor := poolIn(t, schema, func(c *pgxpool.Config) { c.ConnConfig.User = user })
			box := unmigrated(t, poor, cfg)
			fatal := func(what string, n, want int, err error) {
				t.Helper()
				if err != nil || n != want {
					t.Fatalf("%s: %d rows, error %v; want %d", what, n, err, want)
				}
			}

			keyed := message("1")
			keyed.Key = "k"
			write(t, box, poor, keyed, message("2"))
			rows := lease(t, box, "a", time.Minute)
			fatal("Lease", len(rows), 2, nil)
			settle(t, box, "a", outbox.Result{Number: rows[0].Number, State: outbox.Dead, Error: "refused"},
				outbox.Result{Number: rows[1].Number, State: outbox.Published})
			gone := dead(t, box)
			fatal("List", len(gone), 1, nil)
			n, err := box.Requeue(t.Context(), outbox.RowInfo{ID: gone[0].ID})
			fatal("Requeue", n, 1, err)
			n, err = box.Replay(t.Context(), outbox.ReplayRequest{Before: time.Now().Add(time.Hour), Limit: 10})
			fatal("Replay", n, 1, err)
			if s := stats(t, box); s.Pending != 2 {
				t.Fatalf("%+v, want 2 pending rows", s)
			}
			rows = lease(t, box, "b", time.Minute)
			fatal("Lease again", len(rows), 2, nil)
			settle(t, box, "b", outbox.Result{Number: rows[0].Number, State: outbox.Dead, Error: "refused"},
				outbox.Result{Number: rows[1].Number, State: outbox.Published})
			gone = dead(t, box)
			fatal("List again", len(gone), 1, nil)
			n, err = box.Discard(t.Context(), outbox.RowInfo{ID: gone[0].ID})
			fatal("Discard", n, 1, err)
			n, err = box.Clean(t.Context(), 0, 10)
			fatal("Clean", n, 1, err)
			if err := box.Notify(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestPlan_SaysWhatMigrateWouldDo(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	schema := fmt.Sprintf("Planned_%d", os.Getpid())
	t.Cleanup(func() { pool.Exec(context.Background(), `DROP SCHEMA IF EXISTS "`+schema+`" CASCADE`) })
	for _, cfg := range []pgoutbox.Config{{}, {Ordered: true, Table: "ordered"}, {Schema: schema}} {
		box := unmigrated(t, pool, cfg)
		plan, err := box.Plan(t.Context())
		if err != nil || plan.Found != 0 || plan.Wanted != 2 || plan.SQL == "" {
			t.Fatalf("%+v, %v, want that there is no table", plan, err)
		}
		if _, err := pool.Exec(t.Context(), plan.SQL, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%v in\n%s", err, plan.SQL)
		}
		if plan, err := box.Plan(t.Context()); err != nil || plan != (dedupstore.Migration{Found: 2, Wanted: 2}) {
			t.Errorf("%+v, %v, want nothing to do", plan, err)
		}
		if err := box.Migrate(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestFind_AsksTheTablesWhetherTheyAreOrdered(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for _, ordered := range []bool{false, true} {
		cfg := pgoutbox.Config{Ordered: ordered, Table: fmt.Sprint("box_", ordered)}
		m := message("1")
		m.Key = "k"
		write(t, boxIn(t, pool, cfg), pool, m)
		for _, guess := range []bool{false, true} {
			cfg.Ordered = guess
			box, err := pgoutbox.Find(t.Context(), pool, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if rows := lease(t, box, "t", time.Minute); len(rows) != 1 || (rows[0].OrderKey != "") != ordered {
				t.Errorf("rows %+v, want one, in a lane: %v", rows, ordered)
			}
			settle(t, box, "t")
		}
	}
	box, err := pgoutbox.Find(t.Context(), pool, pgoutbox.Config{Ordered: true, Table: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Error(err)
	}
}
