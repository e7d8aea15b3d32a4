package pgwal_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/pgwal"
	"github.com/oncemill/oncemill/producer"
)

func TestMain(m *testing.M) {
	if os.Getenv(childDSN) != "" {
		child()
		return
	}
	flag.Set("test.parallel", "6") // unless -parallel says otherwise: tests wait for the server, and for time to pass
	goleak.VerifyTestMain(m)
}

const waitLimit = 2 * time.Minute

// until polls for a condition.
func until(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(waitLimit); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", waitLimit, what)
		}
	}
}

// lasts waits for something that takes its time, such as an outage.
func lasts(d time.Duration) { <-time.After(d) }

// full says whether tests run with full counts.
func full(some, all int) int {
	if os.Getenv("ONCEMILL_PROOF") != "" {
		return all
	}
	return some
}

var schemas atomic.Int64

// A rig is an outbox in a schema of its own, and what relays of it need.
type rig struct {
	t      testing.TB
	pool   *pgxpool.Pool
	box    *pgoutbox.Outbox
	broker *broker
	log    *journal
	config settings
}

// settings are a relay's config, and limits that only tests change.
type settings struct {
	pgwal.Config
	pgwal.Limits
}

func newRig(t testing.TB, configure ...func(*settings)) *rig {
	t.Helper()
	return newRigOn(t, postgrestest.Shared(t), configure...)
}

// A server is one, or a database of it.
type server interface {
	Pool(t testing.TB, configure ...func(*pgxpool.Config)) *pgxpool.Pool
}

func newRigOn(t testing.TB, server server, configure ...func(*settings)) *rig {
	t.Helper()
	schema := fmt.Sprintf("wal_%d_%d", os.Getpid(), schemas.Add(1))
	pool := server.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 8
		c.ConnConfig.RuntimeParams["search_path"] = schema
	})
	g := &rig{t: t, pool: pool, broker: newBroker(), log: &journal{}}
	t.Cleanup(func() {
		if log := g.log.String(); t.Failed() {
			t.Logf("the end of the relay's log:\n%s", log[max(0, len(log)-4000):])
		}
	})
	g.exec(`CREATE SCHEMA ` + schema)
	t.Cleanup(func() { g.exec(`DROP SCHEMA ` + schema + ` CASCADE`) })
	g.exec(`CREATE TABLE orders (id text PRIMARY KEY)`)
	var err error
	if g.box, err = pgoutbox.New(pool, pgoutbox.Config{}); err != nil {
		t.Fatal(err)
	}
	if err := g.box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.config.Config = pgwal.Config{
		Pool: pool, Slot: schema, Backoff: oncemill.Backoff{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond},
		Logger: slog.New(slog.NewTextHandler(g.log, nil)),
	}
	g.config.PollInterval, g.config.WatchInterval = 20*time.Millisecond, time.Second
	for _, f := range configure {
		f(&g.config)
	}
	r := g.relay()
	if err := r.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var err error
		until(t, "the slot to be free", func() bool {
			err = r.Drop(context.Background())
			_, busy := errors.AsType[*dedupstore.SetupError](err)
			return !busy
		})
		if err != nil {
			t.Error(err)
		}
	})
	return g
}

func (g *rig) exec(query string, args ...any) {
	g.t.Helper()
	if _, err := g.pool.Exec(context.Background(), query, args...); err != nil {
		g.t.Fatalf("%s: %v", query, err)
	}
}

func value[T any](g *rig, query string, args ...any) (v T) {
	g.t.Helper()
	if err := g.pool.QueryRow(context.Background(), query, args...).Scan(&v); err != nil {
		g.t.Fatalf("%s: %v", query, err)
	}
	return v
}

func (g *rig) relay(configure ...func(*settings)) *pgwal.Relay {
	g.t.Helper()
	config := g.config
	for _, f := range configure {
		f(&config)
	}
	r, err := pgwal.New(config.Config, g.broker)
	if err != nil {
		g.t.Fatal(err)
	}
	r.Limit(config.Limits)
	return r
}

// start runs a relay and returns what stops it and waits for its end.
func (g *rig) start(configure ...func(*settings)) (stop func()) {
	g.t.Helper()
	r := g.relay(configure...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			g.t.Errorf("Run returned %v, want nil", err)
		}
	})
	g.t.Cleanup(stop)
	return stop
}

// begin writes messages in a transaction that stays open.
func (g *rig) begin(messages ...producer.Message) pgx.Tx {
	g.t.Helper()
	tx, err := g.pool.Begin(context.Background())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { tx.Rollback(context.Background()) })
	g.add(tx, messages...)
	return tx
}

func (g *rig) add(tx pgx.Tx, messages ...producer.Message) {
	g.t.Helper()
	if err := g.box.In(tx).Publish(context.Background(), messages...); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) commit(tx pgx.Tx) {
	g.t.Helper()
	if err := tx.Commit(context.Background()); err != nil {
		g.t.Fatal(err)
	}
}

// write commits messages in a transaction of their own.
func (g *rig) write(messages ...producer.Message) {
	g.t.Helper()
	g.commit(g.begin(messages...))
}

func (g *rig) slot(column string) string {
	g.t.Helper()
	return value[string](g, `SELECT coalesce(`+column+`::text, '') FROM pg_replication_slots WHERE slot_name = $1`, g.config.Slot)
}

// holder is the backend that reads the slot; 0: none.
func (g *rig) holder() int {
	return value[int](g, `SELECT coalesce((SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1), 0)`, g.config.Slot)
}

func (g *rig) kill() {
	g.t.Helper()
	g.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, g.config.Slot)
}

// confirmed says whether everything that is written so far is confirmed.
func (g *rig) awaitConfirmed() {
	g.t.Helper()
	at := value[string](g, `SELECT pg_current_wal_lsn()::text`)
	until(g.t, "the confirmation of "+at, func() bool {
		return value[bool](g, `SELECT confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, g.config.Slot, at)
	})
}

func message(id string) producer.Message {
	return producer.Message{ID: id, Topic: "orders", Payload: []byte("payload of " + id)}
}

func keyed(id, key string) producer.Message {
	m := message(id)
	m.Key = key
	return m
}

func numbered(n int) (messages []producer.Message) {
	for i := range n {
		messages = append(messages, message(fmt.Sprintf("order-%05d", i)))
	}
	return messages
}

// broker remembers what it acknowledged. answer decides; nil acknowledges everything.
type broker struct {
	mu     sync.Mutex
	answer func(ctx context.Context, messages []producer.Message) error
	tried  []string
	acked  []string
}

func newBroker() *broker { return &broker{} }

func (b *broker) Publish(ctx context.Context, messages ...producer.Message) error {
	b.mu.Lock()
	for _, m := range messages {
		b.tried = append(b.tried, m.ID)
	}
	answer := b.answer
	b.mu.Unlock()
	var err error
	if answer != nil {
		err = answer(ctx, messages)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e, single := errors.AsType[*producer.PublishError](err)
	for i, m := range messages {
		failed := err != nil
		if single {
			failed = slices.ContainsFunc(e.Failures, func(f producer.Failure) bool { return f.Index == i })
		}
		if !failed {
			b.acked = append(b.acked, m.ID)
		}
	}
	return err
}

func (b *broker) set(answer func(context.Context, []producer.Message) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = answer
}

// got is what was acknowledged, in that order.
func (b *broker) got() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.acked)
}

func (b *broker) attempts(id string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.tried {
		if t == id {
			n++
		}
	}
	return n
}

func (b *broker) copies() map[string]int {
	n := map[string]int{}
	for _, id := range b.got() {
		n[id]++
	}
	return n
}

// refuse refuses messages with these IDs.
func refuse(ids ...string) func(context.Context, []producer.Message) error {
	return func(_ context.Context, messages []producer.Message) error {
		var failures []producer.Failure
		for i, m := range messages {
			if slices.Contains(ids, m.ID) {
				failures = append(failures, producer.Failure{Index: i, ID: m.ID, Err: errors.New("no such subject")})
			}
		}
		if failures == nil {
			return nil
		}
		return &producer.PublishError{Failures: failures}
	}
}

// journal is a log.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// refuseAll refuses every message.
func refuseAll(_ context.Context, messages []producer.Message) error {
	var e producer.PublishError
	for i, m := range messages {
		e.Failures = append(e.Failures, producer.Failure{Index: i, ID: m.ID, Err: errors.New("no such subject")})
	}
	return &e
}

// dead returns the dead rows.
func (g *rig) dead() []outbox.RowInfo {
	g.t.Helper()
	page, err := g.box.List(g.t.Context(), outbox.Filter{States: []outbox.State{outbox.Dead}}, "")
	if err != nil {
		g.t.Fatal(err)
	}
	return page.Rows
}
