package pgwal_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/pgwal"
	"github.com/oncemill/oncemill/producer"
)

// wantSetupError checks that an error says what is wrong.
func wantSetupError(t *testing.T, err error, words ...string) {
	t.Helper()
	if _, ok := errors.AsType[*dedupstore.SetupError](err); !ok {
		t.Errorf("%v, want a SetupError", err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// run runs a relay that should end by itself.
func (g *rig) run(configure ...func(*settings)) error {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), waitLimit)
	defer cancel()
	err := g.relay(configure...).Run(ctx)
	if ctx.Err() != nil {
		g.t.Error("the relay did not end by itself")
	}
	return err
}

func TestSetup_MayBeRepeatedAndRunBySeveral(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	if err := g.relay().Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := g.relay().Setup(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := value[int](g, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, g.config.Slot); n != 1 {
		t.Errorf("%d slots", n)
	}
	for range 2 {
		if err := g.relay().Drop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := value[int](g, `SELECT count(*) FROM pg_publication WHERE pubname = $1`, g.config.Slot); n != 0 {
		t.Error("the publication is still there")
	}
}

func TestDrop_RefusesASlotInUse(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.start()
	until(t, "a holder", func() bool { return g.holder() != 0 })
	wantSetupError(t, g.relay().Drop(t.Context()), g.config.Slot, "stop the relays")
}

func TestRun_NamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, without string
		configure     func(*settings)
		want          []string
	}{
		{"slot", `SELECT pg_drop_replication_slot('%s')`, nil, []string{`slot "`, "call Setup"}},
		{"publication", `DROP PUBLICATION %s`, nil, []string{`publication "`, "call Setup"}},
		{"table", ``, func(c *settings) { c.Table = "nowhere" }, []string{`table "nowhere"`, "Migrate"}},
		{"table of the publication", `ALTER PUBLICATION %s DROP TABLE oncemill_outbox`, nil, []string{"does not have"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newRig(t)
			if tc.without != "" {
				g.exec(fmt.Sprintf(tc.without, g.config.Slot))
			}
			if tc.configure == nil {
				tc.configure = func(*settings) {}
			}
			wantSetupError(t, g.run(tc.configure), tc.want...)
		})
	}
	g := newRig(t)
	g.exec(`ALTER PUBLICATION ` + g.config.Slot + ` SET (publish = 'update')`)
	wantSetupError(t, g.run(), "does not publish inserts", "ALTER PUBLICATION")
	wantSetupError(t, g.relay().Setup(t.Context()), "does not publish inserts")
}

func TestRun_NamesASlotOfAnotherKind(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	name := g.config.Slot + "_physical"
	g.exec(`SELECT pg_create_physical_replication_slot($1)`, name)
	t.Cleanup(func() { g.exec(`SELECT pg_drop_replication_slot($1)`, name) })
	configure := func(c *settings) { c.Slot = name }
	wantSetupError(t, g.run(configure), name, "set Config.Slot")
	wantSetupError(t, g.relay(configure).Setup(t.Context()), name, "set Config.Slot")
}

// Messages of a prepared transaction would be published before it is committed, or rolled back.
func TestRun_RefusesASlotThatShowsPreparedTransactions(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	if err := g.relay().Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)`, g.config.Slot)
	wantSetupError(t, g.relay().Setup(t.Context()), g.config.Slot, "two_phase")
	g.exec(`SELECT pg_drop_replication_slot($1)`, g.config.Slot)
	if err := g.relay().Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.exec(`SELECT pg_drop_replication_slot($1)`, g.config.Slot)
	g.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)`, g.config.Slot)
	wantSetupError(t, g.run(), g.config.Slot, "two_phase")
}

// Another process may end, or another server take over, between PREPARE and COMMIT.
func TestRelay_PreparedTransactionsArePublishedWhenTheyAreCommitted(t *testing.T) {
	t.Parallel()
	s := postgrestest.Start(t, "max_prepared_transactions=4")
	g := newRigOn(t, s, func(c *settings) { c.MaxInFlight = 1 }) // keeps the order of commits
	stop := g.start()
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		tx := g.begin(message(end))
		if _, err := tx.Exec(t.Context(), `PREPARE TRANSACTION '`+g.config.Slot+end+`'`); err != nil {
			t.Fatal(err)
		}
		_ = tx.Rollback(t.Context()) // gives the connection back
	}
	g.write(message("between"))
	g.awaitConfirmed()
	stop()
	g.start()
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		g.exec(end + ` PREPARED '` + g.config.Slot + end + `'`)
	}
	g.write(message("after"))
	g.awaitConfirmed()
	if got := g.broker.got(); !slices.Equal(got, []string{"between", "COMMIT", "after"}) {
		t.Errorf("published %q", got)
	}
}

func TestRun_NamesAMissingRight(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	user := g.config.Slot + "_user"
	schema := g.config.Slot
	g.exec(`CREATE ROLE ` + user + ` LOGIN`)
	g.exec(`GRANT USAGE ON SCHEMA ` + schema + ` TO ` + user)
	g.exec(`GRANT ALL ON ALL TABLES IN SCHEMA ` + schema + ` TO ` + user)
	t.Cleanup(func() { g.exec(`DROP OWNED BY ` + user); g.exec(`DROP ROLE ` + user) })
	pool := postgrestest.Shared(t).Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.User = user
		c.ConnConfig.RuntimeParams["search_path"] = schema
	})
	as := func(c *settings) { c.Pool = pool }
	wantSetupError(t, g.run(as), user, "REPLICATION")
	if err := g.relay().Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantSetupError(t, g.relay(as).Setup(t.Context()), user, "Setup needs CREATE")
}

func TestRun_RightsThatTheDocsNameAreEnough(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	user := g.config.Slot + "_user"
	schema := g.config.Slot
	g.exec(`CREATE ROLE ` + user + ` LOGIN REPLICATION`)
	t.Cleanup(func() { g.exec(`DROP OWNED BY ` + user); g.exec(`DROP ROLE ` + user) })
	g.exec(`GRANT USAGE ON SCHEMA ` + schema + ` TO ` + user)
	g.exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON oncemill_outbox, oncemill_outbox_lease TO ` + user)
	g.exec(`GRANT SELECT ON oncemill_outbox_settings TO ` + user)
	pool := postgrestest.Shared(t).Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.User = user
		c.ConnConfig.RuntimeParams["search_path"] = schema
	})
	stop := g.start(func(c *settings) { c.Pool = pool })
	defer stop()
	g.write(message("1"))
	until(t, "the message to be published and recorded", func() bool {
		return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE published_at IS NOT NULL`) == 1
	})
}

// If the user does not see a row in the table, the relay would take it for settled, and confirm the log beyond it.
func TestRun_RefusesATableThatHidesRows(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	user := g.config.Slot + "_user"
	schema := g.config.Slot
	g.exec(`CREATE ROLE ` + user + ` LOGIN REPLICATION`)
	t.Cleanup(func() { g.exec(`DROP OWNED BY ` + user); g.exec(`DROP ROLE ` + user) })
	g.exec(`GRANT USAGE ON SCHEMA ` + schema + ` TO ` + user)
	g.exec(`GRANT ALL ON ALL TABLES IN SCHEMA ` + schema + ` TO ` + user)
	pool := postgrestest.Shared(t).Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.User = user
		c.ConnConfig.RuntimeParams["search_path"] = schema
	})
	as := func(c *settings) { c.Pool = pool }
	g.write(message("1"))
	g.exec(`ALTER TABLE oncemill_outbox ENABLE ROW LEVEL SECURITY`)
	wantSetupError(t, g.run(as), "oncemill_outbox", "row-level security", "USING (true)")
	g.exec(`CREATE POLICY relay ON oncemill_outbox TO ` + user + ` USING (true)`)
	stop := g.start(as)
	defer stop()
	until(t, "the message to be published and recorded", func() bool {
		return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE published_at IS NOT NULL`) == 1
	})
}

// relayOn is a relay of a server that has settings of its own, with an outbox.
func relayOn(t *testing.T, settings ...string) *pgwal.Relay {
	t.Helper()
	s := postgrestest.Start(t, settings...)
	pool := s.Pool(t)
	box, err := pgoutbox.New(pool, pgoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := pgwal.New(pgwal.Config{Pool: pool, Logger: slog.New(slog.DiscardHandler)}, newBroker())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSetup_NamesAWrongWALLevel(t *testing.T) {
	t.Parallel()
	r := relayOn(t, "wal_level=replica")
	wantSetupError(t, r.Setup(t.Context()), "wal_level", "set wal_level = logical")
	wantSetupError(t, r.Run(t.Context()), "wal_level", "set wal_level = logical")
}

// The relay would count as a synchronous standby: with the broker away, no commit of the server would end.
func TestSetup_RefusesToBeASynchronousStandby(t *testing.T) {
	t.Parallel()
	r := relayOn(t, "synchronous_standby_names=FIRST 1 (*)", "synchronous_commit=local")
	wantSetupError(t, r.Setup(t.Context()), "synchronous_standby_names", "name the standbys")
	wantSetupError(t, r.Run(t.Context()), "synchronous_standby_names", "name the standbys")
}

func TestRelay_LostSlotIsNamedAndItsRowsArePublished(t *testing.T) {
	t.Parallel()
	s := postgrestest.Start(t, "max_slot_wal_keep_size=1", "max_wal_size=32", "min_wal_size=32", "wal_keep_size=0")
	table := newRigOn(t, s)
	table.write(numbered(10)...)
	until(t, "the loss", func() bool {
		table.exec(`SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 8)`)
		table.exec(`SELECT pg_switch_wal()`)
		table.exec(`CHECKPOINT`)
		return table.slot("wal_status") == "lost"
	})

	wantSetupError(t, table.run(), "is lost", "max_slot_wal_keep_size", "idle_replication_slot_timeout", "Setup makes it again")
	if err := table.relay().Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	table.start()
	until(t, "the rows", func() bool { return len(table.broker.got()) == 10 })
}

// While another server takes over, a name may lead to one that has no slot.
func TestRelay_WaitsWhereTheServerIsAStandby(t *testing.T) {
	t.Parallel()
	s := postgrestest.Start(t)
	s.Process() // it has to be the test's own
	g := newRigOn(t, s)
	if err := g.relay().Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	signal := filepath.Join(value[string](g, `SHOW data_directory`), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Restart()
	stop := g.start()
	until(t, "the warning", func() bool { return strings.Contains(g.log.String(), "is a standby") })
	stop() // Run has not ended before
	until(t, "the promotion", func() bool { return value[bool](g, `SELECT pg_promote()`) })
}

func TestNew_NamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	for field, change := range map[string]func(*settings){
		"Config.Pool":           func(c *settings) { c.Pool = nil },
		"Config.Schema":         func(c *settings) { c.Schema = `"` },
		"Config.Table":          func(c *settings) { c.Table = "1" },
		"Config.Slot":           func(c *settings) { c.Slot = "A" },
		"Config.BatchSize":      func(c *settings) { c.BatchSize = -1 },
		"Config.MaxInFlight":    func(c *settings) { c.MaxInFlight = 65 },
		"Config.PublishTimeout": func(c *settings) { c.PublishTimeout = -1 },
		"Config.MaxAttempts":    func(c *settings) { c.MaxAttempts = -1 },
		"Config.Backoff.Min":    func(c *settings) { c.Backoff.Min = 1 },
		"Config.Backoff.Max":    func(c *settings) { c.Backoff.Min, c.Backoff.Max = time.Minute, time.Second },
		"Config.Retention":      func(c *settings) { c.Retention = -2 },
	} {
		config := g.config
		change(&config)
		_, err := pgwal.New(config.Config, g.broker)
		if e, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	var forgotten *broker
	for _, publisher := range []producer.Publisher{nil, forgotten} {
		if e, ok := errors.AsType[*dedupstore.InvalidError](newError(g.config.Config, publisher)); !ok || e.Field != "publisher" {
			t.Errorf("publisher %T: %v", publisher, e)
		}
	}
	if _, err := pgwal.New(pgwal.Config{Pool: g.pool, Schema: "Sales"}, g.broker); err != nil {
		t.Error(fmt.Errorf("the defaults: %w", err))
	}
}

func newError(c pgwal.Config, p producer.Publisher) error {
	_, err := pgwal.New(c, p)
	return err
}

// Somebody drops the table of a running relay, and makes it again. The publication does not have the new one, and the
// log shows it under another number.
func TestRelay_SaysThatTheLogShowsNoRowsAndReadsATableThatWasMadeAnew(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.PollInterval = 3 * time.Second }) // rows that the log does not show are found after 30 s
	g.start()
	g.write(message("before"))
	until(t, "the first message", func() bool { return len(g.broker.got()) == 1 })
	g.exec(`DROP TABLE oncemill_outbox`)
	if err := g.box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the warning", func() bool { return strings.Contains(g.log.String(), "does not show new rows") })
	if err := g.relay().Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "a new session", func() bool { return strings.Count(g.log.String(), "relay reads the log") == 2 })
	g.write(message("after"))
	until(t, "the second message", func() bool { return len(g.broker.got()) == 2 })
}
