package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A mint is a business that writes orders and their messages in one transaction, a stream that they go to, and processes
// that relay them.
type mint struct {
	*ledger.Ledger
	t    *testing.T
	dir  string // of relays' notes
	pool *pgxpool.Pool
	box  *pgoutbox.Outbox
	js   jetstream.JetStream
	task relayJob // of each process

	relays int // that were started

	mu         sync.Mutex
	next       int
	rolledBack map[string]bool // messages
}

// shortLease is a config whose leases end soon after a relay is killed.
func shortLease() outbox.Config {
	return outbox.Config{
		BatchSize: 20, PollInterval: 50 * time.Millisecond, Backoff: oncemill.Backoff{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond},
		PublishTimeout: 600 * time.Millisecond, Lease: 2 * time.Second,
	}
}

// newMint makes tables, a stream without much memory of IDs, so that copies are seen, and starts nothing.
func newMint(t *testing.T, dsn string, urls []string, js jetstream.JetStream, stream jetstream.StreamConfig, ordered bool, cfg outbox.Config) *mint {
	t.Helper()
	m := &mint{
		Ledger: ledger.New(nil), t: t, dir: t.TempDir(), js: js, rolledBack: map[string]bool{},
		task: relayJob{DSN: dsn, URLs: urls, Ordered: ordered, Config: cfg, AckTimeout: cfg.PublishTimeout / 2},
	}
	m.pool = mintPool(t, dsn)
	var err error
	if m.box, err = pgoutbox.New(m.pool, pgoutbox.Config{Ordered: ordered, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	if err := m.box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.exec(`CREATE TABLE counters (key text PRIMARY KEY, n bigint NOT NULL)`)
	m.exec(`CREATE TABLE orders (id text PRIMARY KEY, key text NOT NULL, n bigint NOT NULL)`)
	stream.Name, stream.Subjects, stream.Duplicates = ordersStream, []string{ordersStream}, 100*time.Millisecond
	createStream(t, js, stream)
	return m
}

func mintPool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (m *mint) exec(query string, args ...any) {
	m.t.Helper()
	if _, err := m.pool.Exec(context.Background(), query, args...); err != nil {
		m.t.Fatalf("%s: %v", query, err)
	}
}

// A sale is one transaction. It publishes first and then counts the orders of each key, so the count shows the order of
// commits, whatever the outbox did.
type sale struct{ messages []producer.Message }

// newSale makes up messages with some of 40 keys.
func (m *mint) newSale(n int) sale {
	m.mu.Lock()
	defer m.mu.Unlock()
	var s sale
	for range n {
		id := orderID(m.next)
		m.next++
		s.messages = append(s.messages, producer.Message{ID: id, Topic: ordersStream, Key: fmt.Sprintf("customer-%02d", rand.N(40)), Payload: []byte(id)})
	}
	return s
}

// write does the work of the transaction, but for its end.
func (m *mint) write(ctx context.Context, tx pgx.Tx, s sale) error {
	if err := m.box.In(tx).Publish(ctx, s.messages...); err != nil {
		return err
	}
	byKey := slices.SortedStableFunc(slices.Values(s.messages), func(a, b producer.Message) int { // no two wait for each other
		switch {
		case a.Key < b.Key:
			return -1
		case a.Key > b.Key:
			return 1
		}
		return 0
	})
	for _, message := range byKey {
		_, err := tx.Exec(ctx, `WITH c AS (
			INSERT INTO counters (key, n) VALUES ($2, 1) ON CONFLICT (key) DO UPDATE SET n = counters.n + 1 RETURNING n)
			INSERT INTO orders (id, key, n) SELECT $1, $2, n FROM c`, message.ID, message.Key)
		if err != nil {
			return err
		}
	}
	return nil
}

// sell writes sales side by side, until so many messages were written. One in five is rolled back; some stay open a while.
func (m *mint) sell(ctx context.Context, messages, writers int, pause time.Duration) {
	var all sync.WaitGroup
	defer all.Wait()
	for range writers {
		all.Go(func() {
			for ctx.Err() == nil && m.written() < messages {
				if err := m.transaction(ctx, m.newSale(1+rand.N(3))); err != nil && ctx.Err() == nil {
					m.t.Errorf("a writer failed: %v", err)
					return
				}
				lasts(rand.N(2*pause + 1))
			}
		})
	}
}

func (m *mint) written() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next
}

func (m *mint) transaction(ctx context.Context, s sale) error {
	tx, err := m.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if err := m.write(ctx, tx, s); err != nil {
		return err
	}
	if rand.N(4) == 0 {
		lasts(rand.N(10 * time.Millisecond))
	}
	if rand.N(5) > 0 {
		return tx.Commit(ctx)
	}
	m.mu.Lock()
	for _, message := range s.messages {
		m.rolledBack[message.ID] = true
	}
	m.mu.Unlock()
	return tx.Rollback(ctx)
}

// A relayProcess is a process that does the mint's job.
type relayProcess struct {
	*testserver.Process
	relay int
	dir   string
}

// start starts a process. It does not wait until that works.
func (m *mint) start() relayProcess {
	m.t.Helper()
	m.relays++
	j := m.task
	j.Relay = m.relays
	dir := filepath.Join(m.dir, fmt.Sprint(j.Relay))
	if err := os.Mkdir(dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
	j.Log = filepath.Join(m.dir, fmt.Sprintf("%d.relay", j.Relay))
	p, err := testserver.StartProgram(dir, executable(m.t), j.arguments(m.t)...)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { p.Kill() })
	return relayProcess{p, j.Relay, dir}
}

// startAll starts processes, and waits until they work.
func (m *mint) startAll(n int) (all []relayProcess) {
	m.t.Helper()
	for range n {
		all = append(all, m.start())
	}
	for _, r := range all {
		until(m.t, "a relay to begin", func() bool { return m.began(r) })
	}
	return all
}

// began is whether a process takes signals.
func (m *mint) began(r relayProcess) bool {
	select {
	case <-r.Ended():
		m.t.Fatalf("a relay ended by itself, with code %d\n%s", r.ExitCode(), r.says(0))
	default:
	}
	_, err := os.Stat(filepath.Join(m.dir, fmt.Sprintf("%d.relay", r.relay)))
	return err == nil
}

// says is what the process wrote to its standard error, from a position.
func (r relayProcess) says(from int) string {
	b, err := os.ReadFile(filepath.Join(r.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b[min(from, len(b)):])
}

// terminate ends processes with SIGTERM. They must end well.
func (m *mint) terminate(relays ...relayProcess) {
	m.t.Helper()
	for _, r := range relays {
		until(m.t, "a relay to begin", func() bool { return m.began(r) })
		p, err := os.FindProcess(r.Pid())
		if err == nil {
			err = p.Signal(syscall.SIGTERM)
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
	for _, r := range relays {
		select {
		case <-r.Ended():
		case <-time.After(waitLimit):
			m.t.Fatalf("a relay that got SIGTERM has not ended after %v\n%s", waitLimit, r.says(0))
		}
		if code := r.ExitCode(); code != 0 {
			m.t.Errorf("a relay that got SIGTERM ended with code %d\n%s", code, r.says(0))
		}
	}
}

// stats asks the outbox, for as long as the database is away.
func (m *mint) stats() (s outbox.Stats) {
	m.t.Helper()
	until(m.t, "the outbox to answer", func() bool {
		var err error
		s, err = m.box.Stats(m.t.Context())
		return err == nil
	})
	return s
}

// drain waits until everything is published, and returns how long that took.
func (m *mint) drain() time.Duration {
	m.t.Helper()
	start := time.Now()
	until(m.t, "the outbox to be empty", func() bool { return m.stats().Pending == 0 })
	return time.Since(start)
}

// finish waits until everything is published, ends the relays and returns the books.
func (m *mint) finish(relays ...relayProcess) ledger.Books {
	m.t.Helper()
	m.drain()
	m.terminate(relays...)
	if s := m.stats(); s.Pending != 0 || s.Dead != 0 {
		m.t.Errorf("%d rows are pending and %d dead, want none", s.Pending, s.Dead)
	}
	return m.books()
}

// books compares what was committed with what is in the stream, and in the outbox.
func (m *mint) books() ledger.Books {
	m.t.Helper()
	places := m.orders()
	for id, p := range places {
		if m.task.Ordered {
			m.AskInOrder(id, p)
		} else {
			m.Ask(id)
		}
	}
	m.mustBeRows(places)
	m.fatal(m.ReadRelays(m.dir))
	m.Relayed(m.task.Config.Lease, m.stream())
	sendings := 0
	for _, a := range m.Messages() {
		sendings += len(a.Sendings)
	}
	m.t.Logf("%d messages rolled back", len(m.rolledBack))
	return m.Balance(sendings)
}

// mustBeRows wants each order to have a row, and each row an order.
func (m *mint) mustBeRows(committed map[string]ledger.Place) {
	m.t.Helper()
	rows, err := m.pool.Query(m.t.Context(), `SELECT id FROM oncemill_outbox`)
	if err != nil {
		m.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		m.t.Fatal(err)
	}
	for _, id := range ids {
		if _, ordered := committed[id]; !ordered {
			m.t.Errorf("%s is in the outbox, and was not ordered", id)
		}
	}
	if len(ids) != len(committed) {
		m.t.Errorf("%d rows for %d orders", len(ids), len(committed))
	}
}

// orders are the orders that were committed.
func (m *mint) orders() map[string]ledger.Place {
	m.t.Helper()
	all := map[string]ledger.Place{}
	rows, err := m.pool.Query(m.t.Context(), `SELECT id, key, n FROM orders`)
	if err != nil {
		m.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var p ledger.Place
		if err := rows.Scan(&id, &p.Key, &p.N); err != nil {
			m.t.Fatal(err)
		}
		all[id] = p
	}
	if err := rows.Err(); err != nil {
		m.t.Fatal(err)
	}
	return all
}

// stream returns the message IDs in the stream, in order.
func (m *mint) stream() []string { return headersIn(m.t, m.js, ordersStream, producer.HeaderID) }

// headersIn are the values of a header in a stream, in order.
func headersIn(t *testing.T, js jetstream.JetStream, stream, header string) (all []string) {
	t.Helper()
	readStream(t, js, stream, "", func(msg jetstream.Msg) { all = append(all, msg.Headers().Get(header)) })
	return all
}

// readStream calls a function with each message of a stream, or of a subject of it, in order.
func readStream(t *testing.T, js jetstream.JetStream, stream, subject string, read func(jetstream.Msg)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	config := jetstream.OrderedConsumerConfig{}
	if subject != "" {
		config.FilterSubjects = []string{subject}
	}
	cons := natstest.Ask(t, "a reader of the stream", func(ctx context.Context) (jetstream.Consumer, error) {
		return lookAt(t, js, stream).OrderedConsumer(ctx, config)
	})
	info, err := cons.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := cons.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	for range info.NumPending {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		read(msg)
	}
}

func (m *mint) fatal(errs ...error) {
	m.t.Helper()
	if err := errors.Join(errs...); err != nil {
		m.t.Fatal(err)
	}
}
