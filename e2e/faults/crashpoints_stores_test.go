package faults_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A notedRedis is the whole store, with the operations of its leases noted and crashing.
type notedRedis struct {
	*redisstore.Store
	noted *ledger.Ledger
}

func (s notedRedis) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return s.noted.Claim(ctx, requests)
}

func (s notedRedis) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return s.noted.Extend(ctx, extensions)
}

func (s notedRedis) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return s.noted.Settle(ctx, settlings)
}

func crashingRedis(_ context.Context, p *crashProcess) (*crashStore, error) {
	rdb := redis.NewClient(&redis.Options{
		Addr: p.Redis, ContextTimeoutEnabled: true, Dialer: crashWire{p: p}.DialContext,
	})
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		return nil, err
	}
	noted := ledger.Keep(p.T, crashingStore{store, p}, p.Journal)
	return &crashStore{
		store: notedRedis{store, noted},
		effect: func(_ context.Context, run oncemill.Run) error {
			noted.Does(run)
			return nil
		},
		close: func() {
			store.Close()
			rdb.Close()
		},
	}, nil
}

// A crashingNATSKV is the whole inbox, with crash points around its claims.
type crashingNATSKV struct {
	*natskv.Inbox
	p *crashProcess
}

func (s crashingNATSKV) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return crashingStore{s.Inbox, s.p}.Claim(ctx, requests)
}

// A crashPrice is an output of a run. Each run has two.
type crashPrice struct {
	ID    string // of the message
	PID   int
	Fence uint64
	N     int
}

func crashingStream(_ context.Context, p *crashProcess) (*crashStore, error) {
	store, err := natskv.New(p.js, natskv.Config{Stream: pricesStream, Subject: pricesRecords})
	if err != nil {
		return nil, err
	}
	return &crashStore{
		store: crashingNATSKV{store.Inbox(), p},
		effect: func(ctx context.Context, run oncemill.Run) error {
			var outputs []producer.Message
			for n := range 2 {
				data, err := json.Marshal(crashPrice{run.Key.ID, os.Getpid(), run.Fence, n})
				if err != nil {
					return err
				}
				outputs = append(outputs, producer.Message{
					ID: run.ID(fmt.Sprint("price ", n)), Topic: pricesSubject + "x", Payload: data,
				})
			}
			return store.Publish(ctx, outputs...)
		},
		close: func() {},
	}, nil
}

// An openInbox is what the inboxes of databases are.
type openInbox interface {
	dedupstore.Transactor
	dedupstore.Inspector
	dedupstore.Checker
	dedupstore.ScopeKeeper
}

// A crashingInbox is the whole inbox of a database, with crash points around its claims.
type crashingInbox struct {
	openInbox
	p *crashProcess
}

func (s crashingInbox) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return crashingStore{s.openInbox, s.p}.Claim(ctx, requests)
}

func crashPool(ctx context.Context, dsn string, dial func(*pgxpool.Config)) (
	*pgxpool.Pool, *pgstore.Store, *pgoutbox.Outbox, error,
) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, nil, err
	}
	cfg.MaxConns = 12
	dial(cfg)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, nil, err
	}
	store, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		return nil, nil, nil, err
	}
	box, err := pgoutbox.New(pool, pgoutbox.Config{})
	return pool, store, box, err
}

func crashingPostgres(ctx context.Context, p *crashProcess) (*crashStore, error) {
	pool, store, box, err := crashPool(context.WithoutCancel(ctx), p.SQL, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // else the commit has no text on the wire
		cfg.ConnConfig.DialFunc = crashWire{p, []crashRule{{
			is: p.commitsPostgres, sent: commitSent, answered: commitAnswered, answers: has([]byte("COMMIT\x00")),
		}}}.DialContext
	})
	if err != nil {
		return nil, err
	}
	return &crashStore{
		store:  crashingInbox{store.Inbox().(openInbox), p},
		effect: p.inPostgres(box),
		relayed: func(notes *ledger.Relay) outbox.Store {
			return notedPGBox{box, notes.Store(crashingRows{box, p, new(sync.Map)})}
		},
		close: pool.Close,
	}, nil
}

// commitsPostgres recognizes the statement of an inbox that commits. Claims commit, too.
func (p *crashProcess) commitsPostgres(b []byte) bool {
	return p.claims.Load() == nil && bytes.Contains(b, []byte("\x00commit\x00"))
}

// A notedPGBox is the whole outbox, with its leases noted.
type notedPGBox struct {
	*pgoutbox.Outbox
	noted outbox.Store
}

func (b notedPGBox) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	return b.noted.Lease(ctx, r)
}

func (b notedPGBox) Settle(ctx context.Context, token string, results []outbox.Result) error {
	return b.noted.Settle(ctx, token, results)
}

func crashMariaDB(dsn string, dial func(*mysql.Config)) (*sql.DB, *mysqlstore.Store, *mysqloutbox.Outbox, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, nil, nil, err
	}
	dial(cfg)
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, nil, nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	store, err := mysqlstore.New(db, mysqlstore.Config{})
	if err != nil {
		return nil, nil, nil, err
	}
	box, err := mysqloutbox.New(db, mysqloutbox.Config{})
	return db, store, box, err
}

func crashingMariaDB(_ context.Context, p *crashProcess) (*crashStore, error) {
	db, store, box, err := crashMariaDB(p.SQL, func(cfg *mysql.Config) {
		commit := crashRule{is: commitsMariaDB, sent: commitSent, answered: commitAnswered}
		cfg.DialFunc = crashWire{p, []crashRule{commit}}.DialContext
	})
	if err != nil {
		return nil, err
	}
	return &crashStore{
		store:  crashingInbox{store.Inbox().(openInbox), p},
		effect: p.inMariaDB(box),
		relayed: func(notes *ledger.Relay) outbox.Store {
			return notedMySQLBox{box, notes.Store(crashingRows{box, p, new(sync.Map)})}
		},
		close: func() { db.Close() },
	}, nil
}

// commitsMariaDB recognizes the statement of an inbox that commits.
func commitsMariaDB(b []byte) bool { return bytes.Contains(b, []byte("SET autocommit = 1, SESSION")) }

// A notedMySQLBox is the whole outbox, with its leases noted.
type notedMySQLBox struct {
	*mysqloutbox.Outbox
	noted outbox.Store
}

func (b notedMySQLBox) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	return b.noted.Lease(ctx, r)
}

func (b notedMySQLBox) Settle(ctx context.Context, token string, results []outbox.Result) error {
	return b.noted.Settle(ctx, token, results)
}
