package mysqloutbox_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/producer"
)

// TestMain lets more tests run at once than there are processors: most of them wait for the end of a lease.
func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := p.Value.Set("12"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// full is a count of a proof, or a smaller one.
func full(inProof, reduced int) int {
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		return inProof
	}
	return reduced
}

func newDB(t testing.TB) *sql.DB {
	t.Helper()
	db := mysqltest.Shared(t).NewDatabase(t).Open(t)
	db.SetMaxIdleConns(16)
	return db
}

func boxIn(t testing.TB, db *sql.DB, cfg mysqloutbox.Config) *mysqloutbox.Outbox {
	t.Helper()
	box := unmigrated(t, db, cfg)
	if err := box.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return box
}

func unmigrated(t testing.TB, db *sql.DB, cfg mysqloutbox.Config) *mysqloutbox.Outbox {
	t.Helper()
	box, err := mysqloutbox.New(db, cfg)
	if err != nil {
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

// write commits messages in a transaction of their own, and again after a deadlock.
func write(ctx context.Context, box *mysqloutbox.Outbox, db *sql.DB, messages ...producer.Message) error {
	for {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err = box.InSQL(tx).Publish(ctx, messages...); err == nil {
			err = tx.Commit()
		}
		_ = tx.Rollback()
		if !isDeadlock(err) {
			return err
		}
	}
}

func message(key, id string) producer.Message {
	return producer.Message{ID: id, Topic: "orders", Key: key, Payload: []byte("payload of " + id)}
}

func wantSetup(t testing.TB, err error) {
	t.Helper()
	if _, ok := errors.AsType[*dedupstore.SetupError](err); !ok {
		t.Errorf("the error is %v, want a SetupError", err)
	}
}

// broker remembers what was published, in its order. answer decides; nil acknowledges everything.
type broker struct {
	answer func(messages []producer.Message) error
	mu     sync.Mutex
	got    []producer.Message
}

func (b *broker) Publish(_ context.Context, messages ...producer.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.answer != nil {
		if err := b.answer(messages); err != nil {
			return err
		}
	}
	b.got = append(b.got, messages...)
	return nil
}

func (b *broker) messages() []producer.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]producer.Message{}, b.got...)
}

// quick is a config for tests in real time.
func quick() outbox.Config {
	return outbox.Config{
		PollInterval: 5 * time.Millisecond, Backoff: oncemill.Backoff{Min: 2 * time.Millisecond,
			Max: 20 * time.Millisecond},
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
	deadline := time.After(time.Minute)
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
