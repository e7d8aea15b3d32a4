package pgwal_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

// A failoverRig is an outbox on a primary whose standby can take over. The relays' pool goes by a name, which leads to one of them.
type failoverRig struct {
	*rig                        // on the primary
	after  *rig                 // on the standby
	server *postgrestest.Server // the primary
	named  *pgxpool.Pool
	moved  atomic.Bool
}

func newFailoverRig(t *testing.T, configure ...func(*settings)) *failoverRig {
	t.Helper()
	return newFailoverRigOn(t, postgrestest.Start(t), configure...)
}

func newFailoverRigOn(t *testing.T, primary *postgrestest.Server, configure ...func(*settings)) *failoverRig {
	t.Helper()
	primary.Process() // they have to be two, and the test's own
	f := &failoverRig{rig: newRigOn(t, primary, configure...), server: primary}
	there := primary.Standby(t).Pool(t, f.path)
	box, err := pgoutbox.New(there, pgoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f.after = &rig{t: t, pool: there, box: box, broker: f.broker, log: f.log, config: f.config}
	f.after.config.Pool = there
	to := there.Config().ConnConfig
	f.named = primary.Pool(t, f.path, func(c *pgxpool.Config) {
		c.MaxConns = 4
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if f.moved.Load() {
				c.Host, c.Port, c.Fallbacks = to.Host, to.Port, nil
			}
			return nil
		}
	})
	f.config.Pool = f.named
	return f
}

func (f *failoverRig) path(c *pgxpool.Config) {
	c.ConnConfig.RuntimeParams["search_path"] = f.pool.Config().ConnConfig.RuntimeParams["search_path"]
}

// part ends replication: what is committed from now on, a failover loses.
func (f *failoverRig) part() {
	f.t.Helper()
	f.after.exec(`ALTER SYSTEM SET primary_conninfo = ''`)
	f.after.exec(`SELECT pg_reload_conf()`)
	until(f.t, "the end of replication", func() bool {
		return value[bool](f.after, `SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)`)
	})
}

func (f *failoverRig) promote() {
	f.t.Helper()
	until(f.t, "the promotion", func() bool { return value[bool](f.after, `SELECT pg_promote()`) })
}

func (f *failoverRig) caughtUp() {
	f.t.Helper()
	at := value[string](f.rig, `SELECT pg_current_wal_lsn()::text`)
	until(f.t, "the standby", func() bool {
		return value[bool](f.after, `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, at)
	})
}

// The name leads to a new primary while the old one lives on, as in a switch-over that ends the clients' connections
// but not the walsender's. The log that the relay reads shows no new writes.
func TestRelay_LeavesAServerThatTheNameDoesNotLeadToAnyMore(t *testing.T) {
	t.Parallel()
	f := newFailoverRig(t)
	f.start()
	f.write(message("before"))
	f.awaitConfirmed()
	f.caughtUp()
	f.part()
	f.promote()
	if err := f.after.relay().Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.after.exec(`SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()`) // it is ahead of the old one, and stays so
	f.moved.Store(true)
	f.named.Reset()
	f.after.write(message("after"))
	until(t, "the second message", func() bool { return f.broker.copies()["after"] == 1 })
}

// The relay that waited may reach the new primary before the other one looks. Then somebody reads the slot there.
func TestRelay_LeavesAServerThatTheNameDoesNotLeadToAnyMoreAlsoWhereAnotherRelayIsThere(t *testing.T) {
	t.Parallel()
	f := newFailoverRig(t)
	f.start()
	f.write(message("before"))
	f.awaitConfirmed()
	f.caughtUp()
	f.part()
	f.promote()
	if err := f.after.relay().Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.after.start()
	f.after.write(message("after"))
	until(t, "the other relay", func() bool { return f.broker.copies()["after"] == 1 })
	f.moved.Store(true)
	f.named.Reset()
	until(t, "the relay to leave", func() bool { return strings.Contains(f.log.String(), "leads to another server") })
}

// The pool then has connections to both servers, and the old ones would make the relay leave the new server again.
func TestRelay_TakesItsPoolAlongToTheServerThatTheNameLeadsTo(t *testing.T) {
	t.Parallel()
	f := newFailoverRig(t)
	old, err := f.named.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer old.Release()
	f.start()
	f.write(message("before"))
	f.awaitConfirmed()
	f.caughtUp()
	f.part()
	f.promote()
	if err := f.after.relay().Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.moved.Store(true)
	lead := func() (some bool) { // ends the idle connections to the old server
		for _, c := range f.named.AcquireAllIdle(t.Context()) {
			if c.Conn().Config().Port == f.pool.Config().ConnConfig.Port {
				some = true
				_ = c.Conn().Close(t.Context())
			}
			c.Release()
		}
		return some
	}
	f.after.write(message("after"))
	until(t, "the second message", func() bool { lead(); return f.broker.copies()["after"] == 1 })
	old.Release()
	if lead() {
		t.Error("the pool has kept a connection to the old server")
	}
}

// A standby without the last transactions takes over while the relay lives on. Their messages are written again, with
// the same IDs and at the same places in the log and in sequences, and are published.
func TestRelay_LivesThroughAFailoverThatLosesTransactions(t *testing.T) {
	t.Parallel()
	f := newFailoverRig(t)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- f.relay().Run(ctx) }()
	f.write(message("kept"))
	until(t, "the first message", func() bool { return f.broker.copies()["kept"] == 1 })
	f.caughtUp()
	f.part()
	f.write(message("lost"), message("again"))
	f.broker.set(refuse("stays"))
	f.write(message("stays"), message("acked"))
	until(t, "the others", func() bool { c := f.broker.copies(); return c["lost"]+c["again"]+c["acked"] == 3 })
	f.server.Kill()
	t.Cleanup(func() { // what cleans up uses it
		f.server.Restart()
		f.pool.Reset()
	})
	f.promote()
	f.moved.Store(true)
	wantSetupError(t, <-ended, "is missing")
	cancel()
	f.broker.set(nil)
	f.after.write(message("early"))
	if err := f.after.relay().Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.after.start()
	f.after.write(message("again"), message("acked"))
	f.after.write(message("new"))
	until(t, "what is written there", func() bool {
		c := f.broker.copies()
		return c["again"] == 2 && c["acked"] == 2 && c["new"] == 1 && c["early"] == 1
	})
	f.after.awaitConfirmed()
	if c := f.broker.copies(); c["stays"] != 0 {
		t.Errorf("published %v", c)
	}
}

// needCopies skips the test where the server does not copy slots to standbys.
func needCopies(t *testing.T) {
	t.Helper()
	var version int
	if err := postgrestest.Shared(t).Pool(t).QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version < 170000 {
		t.Skip("slots are copied to standbys since PostgreSQL 17")
	}
}

// PostgreSQL 17 copies the slot to a standby that is set up for it. The relay survives the failover, and publishes
// there what was written before.
func TestRelay_GoesOnWithTheSlotThatAStandbyHasCopied(t *testing.T) {
	needCopies(t)
	primary := postgrestest.Start(t, "primary_slot_name=standby", "hot_standby_feedback=on")
	if _, err := primary.Pool(t).Exec(t.Context(), `SELECT pg_create_physical_replication_slot('standby', true)`); err != nil {
		t.Fatal(err)
	}
	f := newFailoverRigOn(t, primary)
	f.exec(`ALTER SYSTEM SET synchronized_standby_slots = ' Standby, "standby"'`) // as the server reads it, this is one name
	f.exec(`SELECT pg_reload_conf()`)
	until(t, "the standby to use its slot, and the setting", func() bool {
		return value[bool](f.rig, `SELECT active AND current_setting('synchronized_standby_slots') <> '' FROM pg_replication_slots WHERE slot_name = 'standby'`)
	})
	f.start()
	f.write(message("before"))
	f.awaitConfirmed()
	until(t, "the copy of the slot", func() bool {
		f.exec(`SELECT pg_log_standby_snapshot()`) // the slot moves on with it
		f.awaitConfirmed()
		_, _ = f.after.pool.Exec(t.Context(), `SELECT pg_sync_replication_slots()`) // sync_replication_slots does that, once in a while
		return value[bool](f.after, `SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND synced AND NOT temporary AND invalidation_reason IS NULL)`, f.config.Slot)
	})
	if strings.Contains(f.log.String(), "waits for a standby") {
		t.Errorf("a false alarm:\n%s", f.log)
	}
	f.broker.set(refuse("late"))
	f.write(message("late"))
	until(t, "an attempt", func() bool { return f.broker.attempts("late") > 0 })
	f.caughtUp()
	f.server.Kill()
	t.Cleanup(func() { // what cleans up uses it
		f.server.Restart()
		f.pool.Reset()
	})
	f.promote()
	f.moved.Store(true)
	f.broker.set(nil)
	f.after.write(message("after"))
	until(t, "what was written before, and after", func() bool { c := f.broker.copies(); return c["late"] > 0 && c["after"] > 0 })
	f.after.awaitConfirmed()
}

// A missing file of the table is not a missing log. It comes back, as with a disk that was not mounted.
func TestRelay_LivesThroughATableWhoseFileIsAway(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	server.Process()
	g := newRigOn(t, server)
	g.write(message("order"))
	g.exec(`CHECKPOINT`)
	file := filepath.Join(value[string](g, `SHOW data_directory`), value[string](g, `SELECT pg_relation_filepath('oncemill_outbox')`))
	move := func(from, to string) {
		t.Helper()
		server.Kill()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
		server.Restart()
		g.pool.Reset()
	}
	move(file, file+".away")
	g.start()
	until(t, "the failure", func() bool { return strings.Contains(g.log.String(), "look rows up") })
	move(file+".away", file)
	until(t, "the row", func() bool { return g.broker.copies()["order"] == 1 })
}

// Connections that find no room on the primary may go to a standby in the same list. The relay reads on.
func TestRelay_ReadsOnWhileThePoolIsOnAStandby(t *testing.T) {
	t.Parallel()
	f := newFailoverRig(t)
	f.start()
	f.write(message("before"))
	f.awaitConfirmed()
	f.moved.Store(true)
	f.named.Reset()
	until(t, "a look at the slot on the standby", func() bool {
		return value[bool](f.after, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%row_security_active%' AND pid <> pg_backend_pid())`)
	})
	for i := range 50 {
		id := fmt.Sprint("after ", i)
		f.write(message(id))
		until(t, "the message", func() bool { return f.broker.copies()[id] == 1 })
	}
	if strings.Contains(f.log.String(), "reading the log failed") {
		t.Errorf("the relay left the primary:\n%s", f.log)
	}
}
