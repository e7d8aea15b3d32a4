package sqliteoutbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// open opens a database that is closed when the test ends.
func open(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sqliteoutbox.Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// newBox returns an outbox in a new database, with a table of orders beside it.
func newBox(t testing.TB) (*sqliteoutbox.Outbox, *sql.DB) {
	t.Helper()
	db := open(t, filepath.Join(t.TempDir(), "shop.db"))
	mustExec(t, db, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	return boxIn(t, db), db
}

func boxIn(t testing.TB, db *sql.DB) *sqliteoutbox.Outbox {
	t.Helper()
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return box
}

func mustExec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

// write commits messages in a transaction of their own.
func write(t testing.TB, box *sqliteoutbox.Outbox, db *sql.DB, messages ...producer.Message) {
	t.Helper()
	tx := begin(t, db)
	if err := box.InSQL(tx).Publish(context.Background(), messages...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func message(id string) producer.Message {
	return producer.Message{ID: id, Topic: "orders", Payload: []byte("payload of " + id)}
}

// lease leases rows without an unknown attempt.
func lease(t testing.TB, box *sqliteoutbox.Outbox, token string, d time.Duration) []outbox.Row {
	t.Helper()
	return leaseKind(t, box, token, d, false)
}

func leaseKind(t testing.TB, box *sqliteoutbox.Outbox, token string, d time.Duration, suspects bool) []outbox.Row {
	t.Helper()
	rows, err := box.Lease(context.Background(), outbox.LeaseRequest{Token: token, Limit: 100, Lease: d, Suspects: suspects})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func settle(t testing.TB, box *sqliteoutbox.Outbox, token string, results ...outbox.Result) {
	t.Helper()
	if err := box.Settle(context.Background(), token, results); err != nil {
		t.Fatal(err)
	}
}

func idsOf(rows []outbox.Row) (ids []string) {
	for _, r := range rows {
		ids = append(ids, r.Message.ID)
	}
	return ids
}

func count(t testing.TB, db *sql.DB, where string) (n int) {
	t.Helper()
	if err := db.QueryRow(`SELECT count(*) FROM oncemill_outbox WHERE ` + where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func stats(t testing.TB, box *sqliteoutbox.Outbox) outbox.Stats {
	t.Helper()
	s, err := box.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// broker remembers what was published. answer decides; nil acknowledges everything.
type broker struct {
	answer func(ctx context.Context, messages []producer.Message) error
	mu     sync.Mutex
	got    []producer.Message
}

func (b *broker) Publish(ctx context.Context, messages ...producer.Message) error {
	b.mu.Lock()
	b.got = append(b.got, messages...)
	b.mu.Unlock()
	if b.answer == nil {
		return nil
	}
	return b.answer(ctx, messages)
}

func (b *broker) copies() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := map[string]int{}
	for _, m := range b.got {
		n[m.ID]++
	}
	return n
}

// quick is a config for tests in real time.
func quick() outbox.Config {
	return outbox.Config{
		PollInterval: 5 * time.Millisecond, Backoff: oncemill.Backoff{Min: 2 * time.Millisecond, Max: 20 * time.Millisecond},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// start runs a relay and returns what stops it and waits for its end.
func start(t testing.TB, s outbox.Store, p producer.Publisher, c outbox.Config) (stop func()) {
	t.Helper()
	r, err := outbox.NewRelay(s, p, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func numbered(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("order-%03d", i))
	}
	return ids
}
