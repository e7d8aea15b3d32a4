package shop

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// AnswerTime is how long a server has to answer at the start.
const AnswerTime = 5 * time.Second

// StartNATS starts a NATS server with JetStream in this process. Call stop when it is not used any more.
func StartNATS(dir string) (url string, stop func(), err error) {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: filepath.Join(dir, "nats"),
	})
	if err != nil {
		return "", nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	srv.Start()
	stop = func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
	if !srv.ReadyForConnections(10 * time.Second) {
		stop()
		return "", nil, errors.New("embedded NATS server was not ready within 10 s")
	}
	return srv.ClientURL(), stop, nil
}

// ConnectNATS connects to a server that has to be there at the beginning. Later the connection comes back by itself.
func ConnectNATS(url string, options ...nats.Option) (jetstream.JetStream, error) {
	options = append(options, nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.Timeout(AnswerTime))
	conn, err := nats.Connect(url, options...)
	if err != nil {
		return nil, NoServer("nats", Redacted(url), err)
	}
	return jetstream.New(conn)
}

// Messages returns all that a stream has of a subject, copies included.
func Messages(ctx context.Context, js jetstream.JetStream, stream, subject string) ([]jetstream.Msg, error) {
	cons, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return nil, err
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return nil, err
	}
	var all []jetstream.Msg
	for total := int(info.NumPending); len(all) < total; {
		batch, err := cons.Fetch(min(500, total-len(all)), jetstream.FetchMaxWait(AnswerTime))
		if err != nil {
			return nil, err
		}
		before := len(all)
		for msg := range batch.Messages() {
			all = append(all, msg)
		}
		if err := batch.Error(); err != nil || len(all) == before {
			return nil, errors.Join(fmt.Errorf("%s gave %d of %d messages", subject, len(all), total), err)
		}
	}
	return all, nil
}

// AtRest reports whether everything that a durable consumer is to get is acknowledged, and how many deliveries there
// were.
func AtRest(
	ctx context.Context, js jetstream.JetStream, stream, durable string,
) (rest bool, deliveries int, err error) {
	cons, err := js.Consumer(ctx, stream, durable)
	if err != nil {
		return false, 0, err
	}
	info := cons.CachedInfo()
	return info.NumPending == 0 && info.NumAckPending == 0, int(info.Delivered.Consumer), nil
}

// OpenRedis opens a store in Redis. Call the function when it is not used any more.
func OpenRedis(ctx context.Context, url string) (*redisstore.Store, func() error, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, NoServer("redis", Redacted(url), err)
	}
	opts.ContextTimeoutEnabled = true // contexts interrupt waits for the network too
	rdb := redis.NewClient(opts)
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, AnswerTime)
		defer cancel()
		_, err = store.Check(ctx) // whether the server keeps what it confirms
	}
	if err != nil {
		return nil, nil, errors.Join(NoServer("redis", Redacted(url), err), rdb.Close())
	}
	return store, rdb.Close, nil
}

// OpenSQLite opens a store in a file. Call the function when it is not used any more.
func OpenSQLite(ctx context.Context, path string) (*sqlitestore.Store, func() error, error) {
	db, err := sqliteoutbox.Open(ctx, path)
	if err != nil {
		return nil, nil, fmt.Errorf("open the dedup store: %w", err)
	}
	store, err := sqlitestore.New(db, sqlitestore.Config{})
	if err == nil {
		err = store.Migrate(ctx)
	}
	if err == nil {
		_, err = store.Check(ctx) // whether the file keeps what it confirms
	}
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return store, db.Close, nil
}

// OpenPostgres returns connections to a database in which a run has a schema of its own. If there are statements that
// make tables, it connects, and makes what is missing; else the server may be away.
func OpenPostgres(ctx context.Context, url, schema string, tables ...string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, NoServer("postgres", Redacted(url), err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = schema // where all statements of the example look for tables
	cfg.MaxConns = max(cfg.MaxConns, 8)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err == nil && len(tables) > 0 {
		if err = createTables(ctx, pool, schema, tables); err != nil {
			pool.Close()
		}
	}
	if err != nil {
		return nil, NoServer("postgres", Redacted(url), err)
	}
	return pool, nil
}

// createTables lets processes that begin together take turns: to PostgreSQL, IF NOT EXISTS is no promise about what
// others are making at the same moment.
func createTables(ctx context.Context, pool *pgxpool.Pool, schema string, tables []string) error {
	ctx, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, schema); err != nil {
			return err
		}
		for _, statement := range append([]string{`CREATE SCHEMA IF NOT EXISTS ` + schema}, tables...) {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}
