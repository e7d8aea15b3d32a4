package faults_test

import (
	"context"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A soakPair is a broker with a store.
type soakPair struct {
	short string // begins the IDs of orders
	inbox bool   // tier 2: one effect, whatever happens
	rate  int    // orders a second
	roles []soakRole
	open  func(ctx context.Context, p *soakProcess) (*soakStore, error) // in a process
	world func(s *soakShop)
}

// A soakRole is what one of a pair's processes is.
type soakRole struct {
	role    string
	version int
	spared  bool // SIGKILL does not hit it, so that it shows whether something grows
}

var soakPairs map[string]soakPair

func init() {
	soakPairs = map[string]soakPair{
		"JetStream × Redis": {
			short: "r", rate: 400, open: soakRedis, world: soakOnRedis,
			roles: []soakRole{
				{role: soakProducer}, {role: soakOperator},
				{role: soakWorker}, {role: soakBatches, version: 1}, {role: soakWorker, version: 1, spared: true},
				{role: soakBatches, spared: true},
			},
		},
		"JetStream × PostgreSQL's inbox": {
			short: "p", inbox: true, rate: 150, open: soakPostgres, world: soakOnPostgres,
			roles: []soakRole{
				{role: soakProducer}, {role: soakOperator}, {role: soakRelay}, {role: soakRelay, spared: true},
				{role: soakWorker}, {role: soakBatches, version: 1}, {role: soakWorker, version: 1, spared: true},
				{role: soakBatches, spared: true},
			},
		},
		"Kafka × MariaDB's inbox": {
			short: "m", inbox: true, rate: 100, open: soakMariaDB, world: soakOnMariaDB,
			roles: []soakRole{
				{role: soakProducer}, {role: soakOperator}, {role: soakRelay}, {role: soakRelay, spared: true},
				{role: soakWorker}, {role: soakBatches, version: 1}, {role: soakWorker, version: 1, spared: true},
				{role: soakBatches, spared: true},
			},
		},
	}
}

// A soakStore is what a process has of its pair.
type soakStore struct {
	store     dedupstore.Store
	inspector dedupstore.Inspector
	effect    func(ctx context.Context, run oncemill.Run) error
	fails     func(run oncemill.Run) // its effect is made, and its handler is about to fail
	relayed   func(notes *ledger.Relay) outbox.Store
	publish   func(ctx context.Context, pub producer.Publisher, messages ...producer.Message) error // of a producer
	close     func()
}

func soakRedis(_ context.Context, p *soakProcess) (*soakStore, error) {
	rdb := redis.NewClient(&redis.Options{Addr: p.Redis, ContextTimeoutEnabled: true})
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		return nil, err
	}
	s := &soakStore{
		inspector: store,
		publish: func(ctx context.Context, pub producer.Publisher, messages ...producer.Message) error {
			return pub.Publish(ctx, messages...)
		},
		close: func() {
			store.Close()
			rdb.Close()
		},
	}
	if p.Role == soakWorker || p.Role == soakBatches {
		if p.noted == nil {
			p.noted = ledger.Keep(p.T, store, p.Journal)
		}
		p.noted.Store = store
		s.store = forgettingRedis{notedRedis{store, p.noted}}
		s.effect = func(_ context.Context, run oncemill.Run) error {
			p.noted.Does(run)
			return nil
		}
		s.fails = p.noted.Fails
	}
	return s, nil
}

// A forgettingRedis is a notedRedis whose ledger does not grow: its journal has it all. A lease may count from when a
// claim without an answer was first asked for, which is never a minute ago.
type forgettingRedis struct{ notedRedis }

func (s forgettingRedis) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	if oneIn(500) {
		s.noted.Forget(time.Now().Add(-time.Minute))
	}
	return s.noted.Claim(ctx, requests)
}

func soakPostgres(ctx context.Context, p *soakProcess) (*soakStore, error) {
	pool, store, box, err := crashPool(context.WithoutCancel(ctx), p.SQL, func(*pgxpool.Config) {})
	if err != nil {
		return nil, err
	}
	inbox := store.Inbox()
	return &soakStore{
		store: inbox, inspector: store, fails: func(oncemill.Run) {},
		effect:  p.inPostgres(box),
		relayed: func(notes *ledger.Relay) outbox.Store { return notedPGBox{box, notes.Store(box)} },
		publish: func(ctx context.Context, _ producer.Publisher, messages ...producer.Message) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return box.In(tx).Publish(ctx, messages...) })
		},
		close: pool.Close,
	}, nil
}

func soakMariaDB(_ context.Context, p *soakProcess) (*soakStore, error) {
	db, store, box, err := crashMariaDB(p.SQL, func(*mysql.Config) {})
	if err != nil {
		return nil, err
	}
	return &soakStore{
		store: store.Inbox(), inspector: store, fails: func(oncemill.Run) {},
		effect:  p.inMariaDB(box),
		relayed: func(notes *ledger.Relay) outbox.Store { return notedMySQLBox{box, notes.Store(box)} },
		publish: func(ctx context.Context, _ producer.Publisher, messages ...producer.Message) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if err := box.InSQL(tx).Publish(ctx, messages...); err != nil {
				return err
			}
			return tx.Commit()
		},
		close: func() { db.Close() },
	}, nil
}
