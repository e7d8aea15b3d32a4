package pgstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// A Store keeps records in PostgreSQL. It is the leased form; Inbox and InboxSQL return the inbox. It is safe for
// concurrent use and holds nothing that must be closed. The pool belongs to the caller.
//
// An inbox uses one connection for each handler that runs, at most three quarters of the pool; other runs wait for
// their turn under a heartbeat. Claims, heartbeats and settlements use the other connections, so give the pool some
// more than there are handlers at once.
//
// The operations of a batch share statements, under a context of the store. Hooks of the pool that look into the
// context (BeforeAcquire, tracers) find nothing of a message there: use a pool for one database, role and search path.
type Store struct {
	pool     *pgxpool.Pool
	cfg      Config
	sql      statements
	*form    // the leased one
	inbox    *inbox
	inboxSQL *inbox
	rest     time.Duration // of RunCleaning between two looks
	granted  owners        // whose claims this program made, and that have not begun to run
	joined   owners        // whose runs have called Join
	share    *share
	known    atomic.Bool // most of the keys that were claimed last had a record
}

// A form is the leased contract on the records, with claims that wait for the disk or do not.
type form struct {
	store   *Store
	relaxed bool
}

var (
	_ dedupstore.Inspector  = (*Store)(nil)
	_ dedupstore.Checker    = (*Store)(nil)
	_ dedupstore.Transactor = (*inbox)(nil)
	_ dedupstore.Inspector  = (*inbox)(nil)
	_ dedupstore.Checker    = (*inbox)(nil)
)

// New returns a store in a database. It does not talk to it: call Migrate once before the first use. The error names
// the field of the config that is wrong, or says that the pool has fewer than two connections.
func New(pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if pool == nil {
		return nil, &dedupstore.InvalidError{Package: "pgstore", Field: "pool", Problem: "is nil"}
	}
	if pool.Config().MaxConns < leastConns {
		return nil, &dedupstore.InvalidError{
			Package: "pgstore", Field: "pool",
			Problem: "has MaxConns 1: handlers need a connection, and heartbeats another one, so at least 2",
		}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{
		pool: pool, cfg: cfg, sql: statementsFor(cfg), rest: time.Minute, share: shareOf(pool),
	}
	s.form = &form{store: s}
	relaxed := &form{store: s, relaxed: true}
	s.inbox = &inbox{form: relaxed, begin: s.beginPgx}
	s.inboxSQL = &inbox{form: relaxed, begin: s.beginSQL}
	return s, nil
}

// Inbox returns the form of the store that settles in the handler's transaction. The handler finds it by Tx. Both forms
// share the record of a key.
func (s *Store) Inbox() dedupstore.Transactor { return s.inbox }

// InboxSQL is Inbox for handlers that write with database/sql. They find the transaction by SQLTx. It costs three
// more round trips a message.
func (s *Store) InboxSQL() dedupstore.Transactor { return s.inboxSQL }

// repetitions is how often the store tries a statement of its own that PostgreSQL refuses because of others. That
// happens only where the database's default isolation is not READ COMMITTED.
const repetitions = 10

// again repeats a statement that PostgreSQL refused because of others. If the server only reads, it resets the pool.
// After a failover the name may have led to the old primary for a moment, and connections would stay there.
func (s *Store) again(ctx context.Context, statement func() error) (err error) {
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 20 * time.Millisecond}
	for range repetitions {
		if err = statement(); err == nil || !conflicts(err) || !pace.Sleep(ctx, pace.Jitter(pauses.Next())) {
			break
		}
	}
	if codeOf(err) == codeReadOnly { // at most once a second: the pool is the caller's, who may only read
		now, last := time.Now().UnixNano(), s.share.left.Load()
		if now-last >= int64(time.Second) && s.share.left.CompareAndSwap(last, now) {
			s.pool.Reset()
		}
	}
	return err
}
