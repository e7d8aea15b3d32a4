package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// This file compiles at the older commit, too: where that has none, scripts/proof puts it beside the other files there.

// An upgradeTask is what a process of one of two versions is to do.
type upgradeTask struct {
	task
	Store   string // a URL of Redis or PostgreSQL, or a file of SQLite
	Inbox   bool
	Migrate bool // and nothing else
}

// TestUpgrade_WorkerProcess is no test, but what [TestUpgrade_TwoVersionsShareTheirRecords] runs in processes.
func TestUpgrade_WorkerProcess(t *testing.T) {
	text, ok := strings.CutPrefix(flag.Arg(0), "upgrade=")
	if !ok {
		t.Skip("another test runs it")
	}
	var j upgradeTask
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	if err := j.run(ctx, t); err != nil {
		t.Error(err)
	}
}

// arguments are those of a process that does the job.
func (j upgradeTask) arguments(t *testing.T) []string {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"-test.run=^TestUpgrade_WorkerProcess$", "-test.timeout=30m", "upgrade=" + string(text)}
}

// effectsTable has what inboxes did.
const effectsTable = `CREATE TABLE IF NOT EXISTS effects (id TEXT NOT NULL, pid INTEGER NOT NULL)`

// A database is a store, its inbox, and how to count the effects in it.
type database struct {
	dedupstore.Store
	inbox   dedupstore.Transactor
	migrate func(context.Context) error
	does    func(ctx context.Context, id string) error // in the transaction of a run
	effects func(ctx context.Context) (map[string][]int, error)
}

func (j upgradeTask) open(ctx context.Context, t *testing.T) (*database, error) {
	switch {
	case strings.HasPrefix(j.Store, "redis:"):
		return openRedis(t, j.Store)
	case strings.HasPrefix(j.Store, "postgres:"):
		return openPostgres(ctx, t, j.Store)
	}
	db := openFile(t, j.Store)
	s, err := sqlitestore.New(db, sqlitestore.Config{})
	if err != nil {
		return nil, err
	}
	return &database{s, s.Inbox(), func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, effectsTable)
		return errors.Join(err, s.Migrate(ctx))
	}, func(ctx context.Context, id string) error {
		_, err := sqlitestore.Tx(ctx).ExecContext(ctx, `INSERT INTO effects VALUES (?, ?)`, id, os.Getpid())
		return err
	}, func(ctx context.Context) (map[string][]int, error) {
		rows, err := db.QueryContext(ctx, `SELECT id, pid FROM effects`)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		return collect(rows)
	}}, nil
}

func openRedis(t *testing.T, url string) (*database, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	s, err := redisstore.New(client(t, options.Addr), redisstore.Config{})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { s.Close() })
	return &database{Store: s, migrate: func(context.Context) error { return nil }}, nil
}

func openPostgres(ctx context.Context, t *testing.T, dsn string) (*database, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 32
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	t.Cleanup(pool.Close)
	s, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		return nil, err
	}
	return &database{s, s.Inbox(), func(ctx context.Context) error {
		_, err := pool.Exec(ctx, effectsTable)
		return errors.Join(err, s.Migrate(ctx))
	}, func(ctx context.Context, id string) error {
		_, err := pgstore.Tx(ctx).Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, id, os.Getpid())
		return err
	}, func(ctx context.Context) (map[string][]int, error) {
		rows, err := pool.Query(ctx, `SELECT id, pid FROM effects`)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		return collect(rows)
	}}, nil
}

// collect reads the processes that had an effect, by message ID.
func collect(rows interface {
	Next() bool
	Scan(...any) error
	Err() error
}) (map[string][]int, error) {
	effects := map[string][]int{}
	for rows.Next() {
		var id string
		var pid int
		if err := rows.Scan(&id, &pid); err != nil {
			return nil, err
		}
		effects[id] = append(effects[id], pid)
	}
	return effects, rows.Err()
}

// run works until ctx ends.
func (j upgradeTask) run(ctx context.Context, t *testing.T) error {
	db, err := j.open(ctx, t)
	if err != nil {
		return err
	}
	if j.Migrate {
		return db.migrate(ctx)
	}
	nc, err := nats.Connect(strings.Join(j.URLs, ","))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	deadLetters, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		return err
	}
	journal := ledger.Keep(t, db.Store, j.Journal)
	store, handle := dedupstore.Store(journal), j.handler(journal)
	if j.Inbox {
		store, handle = db.inbox, func(ctx context.Context, _ jetstream.Msg) error { return j.book(ctx, db) }
	}
	once, err := consumer.New(store, consumer.Config{
		Group: "billing", MaxWait: j.MaxWait, DeadLetters: deadLetters, DeadLetterTopic: lettersStream,
		Policy: oncemill.Policy{Lease: j.Lease, MaxAttempts: 4, Backoff: oncemill.Backoff{Min: 100 * time.Millisecond}},
	})
	if err != nil {
		return err
	}
	cons, err := find(ctx, js)
	if err != nil {
		return err
	}
	w, err := natsjs.NewWorker(once, js, cons, handle, natsjs.Config{
		Handler: "charge", MaxInFlight: j.Window, Grace: j.Grace,
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// book is a handler of an inbox. It fails in 3 of 100 runs after its effect, and refuses some messages for good.
func (j upgradeTask) book(ctx context.Context, db *database) error {
	id := oncemill.FromContext(ctx).Key.ID
	if refuses(id) {
		return oncemill.Permanent(errors.New("no such customer"))
	}
	if err := db.does(ctx, id); err != nil {
		return err
	}
	lasts(rand.N(j.Work))
	if rand.IntN(100) < 3 {
		return fail(true)
	}
	return nil
}
