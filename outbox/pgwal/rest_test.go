package pgwal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func TestRelay_PublishesDelayedRowsWhenTheyAreDue(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.start()
	g.write(message("first")) // what comes before the relay has caught up is looked up in the table
	g.awaitConfirmed()
	late := message("late")
	late.NotBefore = time.Now().Add(3 * time.Second)
	g.write(late, message("now"))
	until(t, "both", func() bool { return len(g.broker.got()) == 3 })
	if time.Now().Before(late.NotBefore) {
		t.Error("published too early")
	}
	until(t, "the records", func() bool {
		return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE published_at IS NULL`) == 0
	})
	if got := g.broker.got(); !slices.Equal(got, []string{"first", "now", "late"}) {
		t.Errorf("published %q", got)
	}
}

func TestRelay_DelayedRowsDoNotWaitForLongWhereALookFailed(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.StoreTimeout = 1500 * time.Millisecond })
	g.start()
	g.write(message("first"))
	g.awaitConfirmed()
	late := message("late")
	late.NotBefore = time.Now().Add(time.Second)
	g.write(late)
	lock, err := g.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	if _, err := lock.Exec(t.Context(), `LOCK TABLE oncemill_outbox`); err != nil { // as a migration
		t.Fatal(err)
	}
	until(t, "a look to fail", func() bool { return strings.Contains(g.log.String(), "looking at the table failed") })
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the delayed row", func() bool { return g.broker.copies()["late"] == 1 })
}

func TestRelay_PublishesReplayedRows(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.start()
	g.write(message("order"))
	g.awaitConfirmed()
	n, err := g.box.Replay(t.Context(), outbox.ReplayRequest{Before: time.Now().Add(time.Minute), Limit: 10})
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	until(t, "the replay", func() bool { return len(g.broker.got()) == 2 })
}

func TestRelay_PublishesRowsThatAreOlderThanTheSlot(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.Retention = outbox.DeleteAtOnce })
	r := g.relay()
	if err := r.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := numbered(full(3000, 50_000))
	for part := range slices.Chunk(old, 1000) {
		g.write(part...)
	}
	open := g.begin(message("open"))
	var setup sync.WaitGroup
	setup.Go(func() {
		if err := r.Setup(t.Context()); err != nil {
			t.Error(err)
		}
	})
	lasts(100 * time.Millisecond)
	g.commit(open) // making the slot waits for it
	setup.Wait()
	g.write(message("new"))
	g.start()
	until(t, "all", func() bool { return len(g.broker.got()) >= len(old)+2 })
	until(t, "the records", func() bool { return value[int](g, `SELECT count(*) FROM oncemill_outbox`) == 0 })
	if got := g.broker.got(); len(got) != len(old)+2 || len(g.broker.copies()) != len(got) {
		t.Errorf("published %d, %d of them different, want %d", len(got), len(g.broker.copies()), len(old)+2)
	}
}

// As where a lost slot was made again, or after a replay, of large messages.
func TestRelay_LargeRowsOfTheTableNeedBoundedMemory(t *testing.T) {
	t.Parallel()
	const size, rows, taken = 64 << 10, 40, 5
	g := newRig(t, func(c *settings) { c.MaxPendingBytes = taken*size - 1 })
	g.exec(`INSERT INTO oncemill_outbox (number, due_at, id, topic, payload)
		SELECT n, now(), n, 'orders', convert_to(repeat('x', $1), 'UTF8') FROM generate_series(1, $2) AS n`, size, rows)
	g.broker.set(func(context.Context, []producer.Message) error { return context.DeadlineExceeded })
	g.start()
	until(t, "attempts", func() bool { return g.broker.attempts("1") >= 5 })
	for n := range rows {
		if id := fmt.Sprint(n + 1); (g.broker.attempts(id) > 0) != (n < taken) {
			t.Errorf("%d attempts of message %s: want those of the first %d messages", g.broker.attempts(id), id, taken)
		}
	}
	g.broker.set(nil)
	until(t, "all", func() bool { return len(g.broker.copies()) == rows })
}

// 1,000 rows together may need more than the server's temp_file_limit or the store's timeout, and would for ever.
// PostgreSQL has one code for that limit and for the slot limit.
func TestRelay_LimitOfTheServerIsNamedAndRowsAreFoundInParts(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "max_replication_slots=1")
	g := newRigOn(t, server)
	if err := g.relay(func(c *settings) { c.Slot = "other" }).Setup(t.Context()); err == nil || !strings.Contains(err.Error(), "slots are in use") {
		t.Errorf("Setup without a slot: %v", err)
	}

	g.exec(`INSERT INTO oncemill_outbox (number, due_at, id, topic, payload)
		SELECT n, now(), n, 'orders', (SELECT string_agg(decode(md5(n::text || m), 'hex'), '') FROM generate_series(1, 60) AS m) FROM generate_series(1, 1000) AS n`)
	g.start(func(c *settings) {
		c.Pool = server.Pool(t, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["search_path"] = g.config.Slot // the schema
			c.ConnConfig.RuntimeParams["work_mem"] = "64kB"
			c.ConnConfig.RuntimeParams["temp_file_limit"] = "400kB"
		})
	})
	until(t, "all", func() bool { return len(g.broker.copies()) == 1000 })
	if said := g.log.String(); !strings.Contains(said, "temp_file_limit") {
		t.Errorf("the log does not say which limit it is:\n%s", said)
	}
}

// The next look is at once if there is room by then, and not after a PollInterval or more.
func TestRelay_LookThatIsCutShortGoesOn(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.exec(`INSERT INTO oncemill_outbox (number, due_at, id, topic, payload)
		SELECT n, now(), n, 'orders', '\x0102030405060708090a' FROM generate_series(1, 10) AS n`)
	for _, c := range []struct {
		limit, bytes, rows int
		full               bool
	}{
		{20, 1000, 10, false}, {10, 1000, 10, true}, {20, 101, 10, false}, {20, 90, 9, true}, {20, 81, 9, true}, {20, 1, 1, true},
	} {
		if rows, full := g.relay().Look(t.Context(), c.limit, c.bytes); rows != c.rows || full != c.full {
			t.Errorf("with a limit of %d rows and %d bytes found %d rows, more to come: %v; want %d, %v", c.limit, c.bytes, rows, full, c.rows, c.full)
		}
	}
}

// hang is a broker that gives no answer to calls with the message "hangs".
func hang(_ context.Context, messages []producer.Message) error {
	if slices.ContainsFunc(messages, func(m producer.Message) bool { return m.ID == "hangs" }) {
		return errors.New("no answer")
	}
	return nil
}

// A row with a key is not given to the table. What the log never showed is found all the same.
func TestRelay_FindsOlderRowsBesideARowWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "k"} {
		t.Run("key "+key, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			if err := g.relay().Drop(t.Context()); err != nil {
				t.Fatal(err)
			}
			g.write(message("old"))
			if err := g.relay().Setup(t.Context()); err != nil {
				t.Fatal(err)
			}
			g.broker.set(hang)
			hangs := message("hangs")
			hangs.Key = key
			g.write(hangs)
			g.start()
			until(t, "the older row", func() bool { return g.broker.copies()["old"] == 1 })
			if g.broker.copies()["hangs"] > 0 {
				t.Error("the row was published without an answer")
			}
			g.broker.set(nil)
			until(t, "the records", func() bool {
				return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE published_at IS NULL`) == 0
			})
			for id, n := range g.broker.copies() {
				if n != 1 {
					t.Errorf("%s published %d times", id, n)
				}
			}
		})
	}
}

func TestRelay_RowWithoutAnAnswerDoesNotHoldUpTheLogForEver(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.broker.set(hang)
	g.write(message("hangs"))
	stop := g.start()
	until(t, "attempts", func() bool { return g.broker.attempts("hangs") > 8 })
	adopted := func() bool {
		return value[bool](g, `SELECT due_at IS NOT NULL AND unknowns >= 5 FROM oncemill_outbox WHERE id = 'hangs'`)
	}
	if adopted() {
		t.Error("an outage writes into the table")
	}
	for i := 0; !adopted(); i++ { // the broker answers for others
		if i == 500 {
			t.Fatal("the row is still the log's")
		}
		g.write(message(fmt.Sprintf("new %d", i)))
		lasts(20 * time.Millisecond)
	}
	g.awaitConfirmed()
	stop()
	g.start()
	lasts(100 * time.Millisecond)
	g.broker.set(nil)
	until(t, "the records", func() bool {
		return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE published_at IS NULL`) == 0
	})
	for id, n := range g.broker.copies() {
		if n != 1 {
			t.Errorf("%s published %d times", id, n)
		}
	}
}

func TestRelay_KeyOfARowWithoutAnAnswerWaitsThroughARestart(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.broker.set(func(_ context.Context, messages []producer.Message) error {
		if slices.ContainsFunc(messages, func(m producer.Message) bool { return m.ID == "first" }) {
			return errors.New("no answer")
		}
		return nil
	})
	stop := g.start()
	g.write(keyed("first", "k"), keyed("second", "k"))
	for i := 0; g.broker.attempts("first") < 12; i++ {
		g.write(message(fmt.Sprintf("other %d", i)))
		lasts(10 * time.Millisecond)
	}
	stop()
	g.start()
	n := g.broker.attempts("first")
	until(t, "another attempt", func() bool { return g.broker.attempts("first") > n })
	g.broker.set(nil)
	g.awaitConfirmed()
	got := g.broker.got()
	if first, second := slices.Index(got, "first"), slices.Index(got, "second"); first < 0 || second < first {
		t.Errorf("published %q, want the first before the second", got)
	}
}

// The statements are those of docs/outbox.md.
func TestRelay_RowThatNeverGetsAnAnswerIsGivenUpByHand(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.broker.set(func(_ context.Context, messages []producer.Message) error {
		if slices.ContainsFunc(messages, func(m producer.Message) bool { return m.ID == "first" }) {
			return errors.New("no such topic")
		}
		return nil
	})
	stop := g.start()
	g.write(keyed("first", "k"))
	g.write(keyed("second", "k"))
	until(t, "attempts", func() bool { return g.broker.attempts("first") > 8 })
	if id := value[string](g, `SELECT id FROM oncemill_outbox
		WHERE published_at IS NULL AND dead_at IS NULL ORDER BY coalesce(due_at, written_at) LIMIT 1`); id != "first" {
		t.Errorf("the oldest row is %s", id)
	}
	g.exec(`UPDATE oncemill_outbox SET dead_at = clock_timestamp()
		WHERE id = 'first' AND topic = 'orders' AND published_at IS NULL`)
	n := g.broker.attempts("first")
	until(t, "more attempts", func() bool { return g.broker.attempts("first") > n+8 })
	if n := g.broker.copies()["second"]; n != 0 {
		t.Error("the key went on without a restart, which the docs ask for")
	}
	stop()
	g.start()
	until(t, "the key goes on", func() bool { return g.broker.copies()["second"] == 1 })
	g.awaitConfirmed()
	if n, err := g.box.Discard(t.Context(), outbox.RowInfo{ID: "first"}); n != 1 || err != nil {
		t.Errorf("%d rows discarded, error %v", n, err)
	}
}

// As docs/outbox.md says.
func TestRelay_PublishesARowAsItWasWritten(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.write(message("order"))
	g.exec(`UPDATE oncemill_outbox SET topic = 'corrected'`)
	topics := make(chan string, 1)
	g.broker.set(func(_ context.Context, messages []producer.Message) error {
		topics <- messages[0].Topic
		return nil
	})
	g.start()
	if topic := <-topics; topic != "orders" {
		t.Errorf("published to topic %q", topic)
	}
}

// A row may be replayed while it is published, or be gone and written again with the same number.
func TestRelay_ResultSaysNothingAboutALaterCopy(t *testing.T) {
	t.Parallel()
	// As if a result had been recorded, without an answer to the relay.
	for name, since := range map[string]func(*rig){
		"replayed": func(g *rig) { g.exec(`UPDATE oncemill_outbox SET due_at = clock_timestamp(), replays = 1`) },
		"written again": func(g *rig) {
			g.exec(`DELETE FROM oncemill_outbox`)
			later := message("order")
			later.NotBefore = time.Now().Add(time.Second)
			g.write(later)
		},
	} {
		for _, retention := range []time.Duration{time.Hour, outbox.DeleteAtOnce} {
			g := newRig(t, func(c *settings) { c.Retention = retention })
			hang := make(chan struct{})
			g.broker.set(func(ctx context.Context, _ []producer.Message) error {
				select {
				case <-hang:
				case <-ctx.Done():
				}
				return nil
			})
			g.start()
			g.write(message("order"))
			until(t, "an attempt", func() bool { return g.broker.attempts("order") == 1 })
			since(g)
			close(hang)
			until(t, "the copy that was "+name, func() bool { return g.broker.copies()["order"] == 2 })
			until(t, "its record", func() bool {
				return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE published_at IS NULL`) == 0
			})
		}
	}
}

func TestRelay_LogAndTableNeverPublishTheSameRow(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.PollInterval, c.Retention = time.Millisecond, outbox.DeleteAtOnce })
	g.start()
	n := full(500, 10_000)
	for i, m := range numbered(n) {
		if i%5 == 0 {
			m.NotBefore = time.Now().Add(time.Duration(i%7) * time.Millisecond)
		}
		g.write(m)
	}
	until(t, "all", func() bool { return len(g.broker.copies()) == n })
	until(t, "the records", func() bool { return value[int](g, `SELECT count(*) FROM oncemill_outbox`) == 0 })
	g.awaitConfirmed()
	if extra := len(g.broker.got()) - n; extra != 0 {
		t.Errorf("%d copies without a cause", extra)
	}
}

func TestRelay_TableLeavesToTheLogWhatItHasStillToShow(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) {
		c.PollInterval, c.Retention = time.Millisecond, outbox.DeleteAtOnce
		c.BatchSize, c.MaxPending, c.MaxInFlight = 100, 100, 1
	})
	g.broker.set(func(context.Context, []producer.Message) error {
		<-time.After(time.Millisecond)
		return nil
	})
	g.start()
	n := full(6000, 100_000)
	g.write(numbered(n)...) // most of it is not read yet while the first of it is published
	until(t, "all", func() bool { return len(g.broker.copies()) == n })
	g.awaitConfirmed()
	if extra := len(g.broker.got()) - n; extra != 0 {
		t.Errorf("%d copies without a cause", extra)
	}
}

func TestRelay_SameMessageAgainAfterItsRowIsGone(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.Retention = outbox.DeleteAtOnce })
	g.broker.set(func(_ context.Context, messages []producer.Message) error {
		for i, m := range messages {
			if m.ID == "blocker" { // with it nothing is confirmed
				return &producer.PublishError{Failures: []producer.Failure{{Index: i, Err: errors.New("no answer"), Unknown: true}}}
			}
		}
		return nil
	})
	gone := func() bool { return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE id = 'order'`) == 0 }
	stop := g.start()
	g.write(keyed("blocker", "k"))
	g.write(message("order"))
	until(t, "the order to be deleted", gone)
	stop()
	g.write(message("order"))
	g.start() // is shown both, and one row is there
	until(t, "the order to be deleted again", gone)
	g.broker.set(nil)
	g.awaitConfirmed()
	if got := g.broker.copies(); got["order"] != 2 || got["blocker"] != 1 {
		t.Errorf("published %v, want the order once for each time it was written", got)
	}
}

func TestRelay_UnreadableRowIsParked(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.start()
	g.exec(`INSERT INTO oncemill_outbox (number, id, topic, payload, header) VALUES (1, 'bad', 'orders', '', '[1]')`)
	g.write(message("good"))
	g.awaitConfirmed()
	if dead := g.dead(); len(dead) != 1 || dead[0].ID != "bad" {
		t.Errorf("dead: %+v", dead)
	}
	if got := g.broker.got(); !slices.Equal(got, []string{"good"}) {
		t.Errorf("published %q", got)
	}
}

// A pool may get values as text, which databases may be told to write in other ways.
func TestRelay_WorksWithAnyStyleOfText(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			g.write(message("1")) // is looked up
			pool := postgrestest.Shared(t).Pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = mode
				c.ConnConfig.RuntimeParams["search_path"] = g.config.Slot
				c.ConnConfig.RuntimeParams["datestyle"] = "SQL, DMY"
				c.ConnConfig.RuntimeParams["bytea_output"] = "escape"
			})
			stop := g.start(func(c *settings) { c.Pool = pool })
			defer stop()
			published := func() bool {
				return value[bool](g, `SELECT bool_and(published_at IS NOT NULL) FROM oncemill_outbox`)
			}
			until(t, "the row to be published", published)
			if n, err := g.box.Replay(t.Context(), outbox.ReplayRequest{Before: time.Now().Add(time.Hour), Limit: 1}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			until(t, "the copy, which the log does not show", published)
		})
	}
}

// One record that the table cannot keep must not stop all others.
func TestRelay_ErrorsInAnotherEncodingAreRecordedInASCII(t *testing.T) {
	t.Parallel()
	db := postgrestest.Shared(t).NewDatabase(t, `ENCODING 'EUC_JP' LOCALE 'C' TEMPLATE template0`)
	g := newRigOn(t, db, func(c *settings) { c.MaxAttempts = 1 })
	g.broker.set(func(_ context.Context, messages []producer.Message) error {
		for i, m := range messages {
			if m.ID == "poison" {
				return &producer.PublishError{Failures: []producer.Failure{{Index: i, ID: m.ID, Err: errors.New("no such subject \U0001F4B8")}}}
			}
		}
		return nil
	})
	g.start()
	g.write(message("poison"), message("order"))
	var dead []outbox.RowInfo
	until(t, "the dead message", func() (there bool) {
		dead = g.dead()
		return len(dead) == 1
	})
	if dead[0].Error != "no such subject ?" {
		t.Errorf("the error is %q", dead[0].Error)
	}
	g.awaitConfirmed()
}
