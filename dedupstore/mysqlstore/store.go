package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A Store keeps dedup records in a table of a MySQL or MariaDB database. It is safe for concurrent use and holds
// nothing that must be closed; the pool belongs to the caller. It grants leased claims; [Store.Inbox] is its
// transactional form.
type Store struct {
	db     *sql.DB
	config Config
	packet atomic.Int64 // max_allowed_packet; 0: the table has not been looked at

	mariadb atomic.Bool
	heard   atomic.Bool // an inbox hears that a session only reads

	handlers func() chan struct{} // a place for each handler of an inbox that may run now
	extra    chan struct{}        // one more, for a run inside a handler while handlers have all places

	// What tests change.
	commit func(context.Context, *sql.Tx) error // of a run
	rest   time.Duration                        // of RunCleaning, when there is nothing left to remove
}

var (
	_ dedupstore.Inspector = (*Store)(nil)
	_ dedupstore.Checker   = (*Store)(nil)
)

// New returns a store in the database that a pool of the driver github.com/go-sql-driver/mysql connects to. It does not
// talk to it. Call Migrate once before the first use, and Check to learn whether the server is set well. The error
// names the field of the config that is wrong.
//
// The store needs no parameter in the DSN. A handler of an inbox keeps a connection while it runs. If the pool has a
// limit (SetMaxOpenConns) when the first handler runs, handlers take at most three quarters of it, and leave two
// connections: more of them wait. Claims and heartbeats need the rest. A run inside a handler takes a place like any
// other; while there is none, such runs take turns with one connection more. So give the pool three connections at
// least; where runs inside handlers have runs inside them, nine, and four more for each further level. Set
// SetMaxIdleConns as high, or connections are made and closed all the time.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, &dedupstore.InvalidError{Package: "mysqlstore", Field: "db", Problem: "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	handlers := sync.OnceValue(func() chan struct{} {
		if limit := db.Stats().MaxOpenConnections; limit > 0 {
			return make(chan struct{}, max(1, min(limit*3/4, limit-2)))
		}
		return nil
	})
	return &Store{
		db: db, config: cfg, handlers: handlers, extra: make(chan struct{}, 1), commit: commit, rest: time.Minute,
	}, nil
}

// usable looks at the table and the session before the first operation.
func (s *Store) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.packet.Load() != 0 {
		return nil
	}
	var found int
	var packet int64
	var commits, mariadb bool
	var isolation string
	err := s.db.QueryRowContext(ctx, "SELECT version, @@max_allowed_packet, @@autocommit, "+
		"VERSION() LIKE '%MariaDB%', "+sqlstore.MySQLOwnIsolation+" FROM `"+s.config.Table+"_version`").
		Scan(&found, &packet, &commits, &mariadb, &isolation)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return s.setup(nil, "is incomplete: call Migrate")
	case err != nil:
		return s.failed("look at the table", err)
	case found != version:
		return s.versionError(found)
	case isolation == "READ-UNCOMMITTED":
		return unfit("transaction isolation", "is READ-UNCOMMITTED: a duplicate could see an outcome that is "+
			"rolled back afterwards: set another in the DSN or on the server", nil)
	case !commits:
		return unfit("autocommit", "is off: claims would stay in transactions that nobody ends: leave autocommit=0 "+
			"out of the DSN", nil)
	}
	s.mariadb.Store(mariadb)
	s.packet.Store(packet)
	return nil
}

const (
	// maxBatch is how many operations share a transaction at most.
	maxBatch = 256

	// contendedFor is how long operations wait for the records that others have locked. Other operations, which came
	// with them, wait as long for their answers.
	contendedFor = 200 * time.Millisecond

	// longestSilence is how long the server keeps a transaction of a batch whose process says nothing.
	longestSilence = 30 * time.Second
)

// change makes operations, each under the lock of its record. None waits for a record that another needs: they pass
// what somebody has locked, and those that have to change it try again, or end with ErrContended.
func (s *Store) change(ctx context.Context, ops []sqlstore.Operation) error {
	if len(ops) == 0 {
		return nil
	}
	passed, err := s.changeFree(ctx, ops)
	if err != nil {
		return err
	}
	fail := func(ops []sqlstore.Operation, err error) {
		for _, op := range ops {
			*op.Err = s.failed("change", err)
		}
	}
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: contendedFor / 8}
	for until := time.Now().Add(contendedFor); len(passed) > 0; {
		locked, err := s.changeNothing(ctx, passed)
		switch {
		case err != nil:
			fail(passed, err)
			return nil
		case len(locked) == 0:
			return nil
		case time.Now().After(until):
			fail(locked, sqlstore.ErrContended)
			return nil
		case !pace.Sleep(ctx, pace.Jitter(pauses.Next())):
			fail(locked, ctx.Err())
			return nil
		}
		if passed, err = s.changeFree(ctx, locked); err != nil {
			fail(locked, err)
			return nil
		}
	}
	return nil
}

// changeFree makes operations in one transaction. It returns those whose records somebody has locked, or that have
// none.
func (s *Store) changeFree(ctx context.Context, ops []sqlstore.Operation) (passed []sqlstore.Operation, err error) {
	silence := longestSilence
	for _, op := range ops { // a vanished host should not cost the record its next lease
		if op.Lease > 0 {
			silence = min(silence, op.Lease/2)
		}
	}
	err = s.inTx(ctx, silence, func(tx sqlstore.Querier) error {
		found, now, err := s.load(ctx, tx, idsOf(ops), " FOR UPDATE SKIP LOCKED")
		if err != nil {
			return err
		}
		passed = nil
		var free []sqlstore.Operation
		locked := map[string]bool{}
		for _, op := range ops {
			if locked[op.ID] = found[op.ID] != nil; locked[op.ID] {
				free = append(free, op)
			} else {
				passed = append(passed, op)
			}
		}
		return s.save(ctx, tx, sqlstore.Decide(free, found, locked, now))
	})
	return passed, err
}

// changeNothing looks at records without a lock, and answers the operations that leave them as they are. It returns the
// others, whose records are locked.
func (s *Store) changeNothing(ctx context.Context, ops []sqlstore.Operation) (locked []sqlstore.Operation, err error) {
	found, now, err := s.load(ctx, s.db, idsOf(ops), "")
	if err != nil {
		return nil, err
	}
	return sqlstore.Changing(ops, found, now), nil
}

func idsOf(ops []sqlstore.Operation) []string {
	ids := make([]string, len(ops))
	for i, op := range ops {
		ids[i] = op.ID
	}
	return ids
}

// inTx runs fn in a transaction of the store's own, and again when the server refuses it because of others.
func (s *Store) inTx(ctx context.Context, silence time.Duration, fn func(sqlstore.Querier) error) error {
	return s.again(ctx, func() error {
		return sqlstore.InMySQLTx(ctx, s.db, silence, fn)
	})
}

// again repeats what the server refused because of others.
func (s *Store) again(ctx context.Context, try func() error) error {
	return sqlstore.Again(ctx, conflicts, try)
}

// alone reports whether the operations of a batch that was refused may go alone.
func alone(err error) bool { return number(err) != 0 || errors.Is(err, dedupstore.ErrFull) }

// all makes operations that are valid.
func (s *Store) all(ctx context.Context, what string, ops []sqlstore.Operation) {
	change := func(batch []sqlstore.Operation) error { return s.change(ctx, batch) }
	sqlstore.Together(ops, maxBatch, change, alone,
		func(op sqlstore.Operation, err error) { *op.Err = s.failed(what, err) })
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	errs := make([]error, len(extensions))
	unusable := s.usable(ctx)
	var ops []sqlstore.Operation
	for i, x := range extensions {
		if errs[i] = cmp.Or(x.Validate(), unusable); errs[i] != nil {
			continue
		}
		op := sqlstore.NewOperation(x.Claim.Key, &errs[i])
		op.Lease = x.Lease
		op.Apply = func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error) { return rec.Extend(x, now) }
		ops = append(ops, op)
	}
	s.all(ctx, "extend", ops)
	return errs
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	errs := make([]error, len(settlings))
	unusable := s.usable(ctx)
	var ops []sqlstore.Operation
	for i, x := range settlings {
		errs[i] = cmp.Or(x.Claim.Validate(), dedupstore.ValidateSettlement(x.Settlement), unusable)
		if errs[i] != nil {
			continue
		}
		op := sqlstore.NewOperation(x.Claim.Key, &errs[i])
		op.Lease = x.Claim.Lease
		op.Apply = func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error) {
			return rec.Settle(x.Claim, x.Settlement, now)
		}
		ops = append(ops, op)
	}
	s.all(ctx, "settle", ops)
	return errs
}
