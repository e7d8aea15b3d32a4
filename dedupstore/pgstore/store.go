package pgstore

import (
	"crypto/sha256"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Store keeps records in PostgreSQL: the leased form, by itself, and the inbox, by Inbox or InboxSQL. It is safe for
// concurrent use and holds nothing that must be closed; the pool belongs to the caller. An inbox uses one connection
// for each handler that runs, at most three quarters of the pool; other runs wait for their turn under a heartbeat.
// Claims, heartbeats and settlements use the other connections: give the pool some more than there are handlers at
// once.
type Store struct {
	pool     *pgxpool.Pool
	cfg      Config
	sql      statements
	*form    // the leased one
	inbox    *inbox
	inboxSQL *inbox
	patience time.Duration // see form.claim
	rest     time.Duration // of RunCleaning between two looks
	granted  owners        // whose claims this program made, and that have not begun to run
	joined   owners        // whose runs have called Join
	share    *share
}

var (
	_ dedupstore.Batcher    = (*Store)(nil)
	_ dedupstore.Checker    = (*Store)(nil)
	_ dedupstore.Transactor = (*inbox)(nil)
	_ dedupstore.Batcher    = (*inbox)(nil)
	_ dedupstore.Checker    = (*inbox)(nil)
)

// New returns a store in a database. It does not talk to it: call Migrate once before the first use. The error names
// the field of the config that is wrong, or says that the pool has fewer than two connections.
func New(pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if pool == nil {
		return nil, &dedupstore.InvalidError{Field: "pool", Problem: "is nil"}
	}
	if pool.Config().MaxConns < leastConns {
		return nil, &dedupstore.InvalidError{Field: "pool", Problem: "has MaxConns 1: handlers need a connection, " +
			"and heartbeats another one, so at least 2"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{
		pool: pool, cfg: cfg, sql: statementsFor(cfg), patience: takeoverPatience, rest: time.Minute,
		share: shareOf(pool),
	}
	s.form = newForm(s, false)
	relaxed := newForm(s, true)
	s.inbox = &inbox{form: relaxed, begin: s.beginPgx}
	s.inboxSQL = &inbox{form: relaxed, begin: s.beginSQL}
	return s, nil
}

// Inbox returns the form of the store that settles in the transaction of the handler, which finds it by Tx. What the
// two forms know of a key is the same record.
func (s *Store) Inbox() dedupstore.Transactor { return s.inbox }

// InboxSQL is Inbox for handlers that write with database/sql: they find the transaction by SQLTx. It costs two more
// round trips a message.
func (s *Store) InboxSQL() dedupstore.Transactor { return s.inboxSQL }

// idOf is what a record is found by. The name itself may be longer than an index takes.
func idOf(name string) []byte {
	sum := sha256.Sum256([]byte(name))
	return sum[:16]
}
