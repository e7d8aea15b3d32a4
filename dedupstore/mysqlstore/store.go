package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A Store keeps dedup records in a table of a MySQL or MariaDB database. It is safe for concurrent use and holds
// nothing that must be closed; the pool belongs to the caller. It grants leased claims; [Store.Inbox] is its
// transactional form.
type Store struct {
	db     *sql.DB
	config Config
	packet atomic.Int64 // max_allowed_packet; 0: the table has not been looked at

	timeoutEnds atomic.Bool // innodb_rollback_on_timeout: a lock timeout ends the transaction

	handlers func() chan struct{} // a place for each handler of an inbox that may run now

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
// limit (SetMaxOpenConns) when the first handler runs, handlers take at most three quarters of it, and more of them
// wait: claims and heartbeats need the rest. Set SetMaxIdleConns as high, or connections are made and closed all the
// time.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, &dedupstore.InvalidError{Field: "db", Problem: "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	handlers := sync.OnceValue(func() chan struct{} {
		if limit := db.Stats().MaxOpenConnections; limit > 0 {
			return make(chan struct{}, max(1, limit*3/4))
		}
		return nil
	})
	return &Store{db: db, config: cfg, handlers: handlers, commit: commit, rest: time.Minute}, nil
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
	var commits, timeoutEnds bool
	err := s.db.QueryRowContext(ctx, "SELECT version, @@max_allowed_packet, @@autocommit, "+
		"@@innodb_rollback_on_timeout FROM `"+s.config.Table+"_version`").Scan(&found, &packet, &commits, &timeoutEnds)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return s.setup(nil, "is incomplete: call Migrate")
	case err != nil:
		return s.failed("look at the table", err)
	case found != version:
		return s.versionError(found)
	case !commits:
		return unfit("autocommit", "is off: claims would stay in transactions that nobody ends: leave autocommit=0 "+
			"out of the DSN", nil)
	}
	s.timeoutEnds.Store(timeoutEnds)
	s.packet.Store(packet)
	return nil
}

// An operation changes one record.
type operation struct {
	id string
	// may be called again, after a conflict
	apply func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error)
	err   *error // where its result goes
}

// maxBatch is how many operations share a transaction at most.
const maxBatch = 256

// ownTx is the isolation of all transactions: it locks the records that it finds and no gaps between them.
var ownTx = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

// change makes operations, each under the lock of its record, in one transaction.
func (s *Store) change(ctx context.Context, ops []operation) error {
	ids := make([]string, len(ops))
	for i, op := range ops {
		ids[i] = op.id
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		found, now, err := s.load(ctx, tx, ids, " FOR UPDATE")
		if err != nil {
			return err
		}
		var changed []*row
		for _, op := range ops {
			rec := cmp.Or(found[op.id], &row{})
			if *op.err = rec.err; rec.err != nil {
				continue
			}
			var next *dedupstore.Stored
			if next, *op.err = op.apply(rec.Stored, now); next == nil {
				continue
			}
			rec.Stored = *next
			if !slices.Contains(changed, rec) {
				changed = append(changed, rec)
			}
		}
		return s.save(ctx, tx, changed)
	})
}

// inTx runs fn in a transaction of the store's own, and again when the server refuses it because of others.
func (s *Store) inTx(ctx context.Context, fn func(*sql.Tx) error) error {
	return s.again(ctx, func() error {
		tx, err := s.db.BeginTx(ctx, ownTx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after the commit it does nothing
		if err := fn(tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// again repeats what the server refused because of others.
func (s *Store) again(ctx context.Context, try func() error) error {
	return sqlstore.Again(ctx, conflicts, try)
}

// together makes operations in batches. If the server refuses one, each goes alone: what one of them is refused for
// says nothing of the others.
func together[O any](all []O, do func([]O) error, fail func(O, error)) {
	for len(all) > 0 {
		batch := all[:min(len(all), maxBatch)]
		all = all[len(batch):]
		err := do(batch)
		switch {
		case err == nil:
		case len(batch) > 1 && (number(err) != 0 || errors.Is(err, dedupstore.ErrFull)):
			for i := range batch {
				if err := do(batch[i : i+1]); err != nil {
					fail(batch[i], err)
				}
			}
		default:
			for _, o := range batch {
				fail(o, err)
			}
		}
	}
}

// all makes operations that are valid.
func (s *Store) all(ctx context.Context, what string, ops []operation) {
	together(ops, func(batch []operation) error { return s.change(ctx, batch) },
		func(op operation, err error) { *op.err = s.failed(what, err) })
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	errs := make([]error, len(extensions))
	unusable := s.usable(ctx)
	var ops []operation
	for i, x := range extensions {
		if errs[i] = cmp.Or(x.Validate(), unusable); errs[i] != nil {
			continue
		}
		extend := func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error) { return rec.Extend(x, now) }
		ops = append(ops, operation{idOf(x.Claim.Key.String()), extend, &errs[i]})
	}
	s.all(ctx, "extend", ops)
	return errs
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	errs := make([]error, len(settlings))
	unusable := s.usable(ctx)
	var ops []operation
	for i, x := range settlings {
		errs[i] = cmp.Or(x.Claim.Validate(), dedupstore.ValidateSettlement(x.Settlement), unusable)
		if errs[i] != nil {
			continue
		}
		settle := func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error) {
			return rec.Settle(x.Claim, x.Settlement, now)
		}
		ops = append(ops, operation{idOf(x.Claim.Key.String()), settle, &errs[i]})
	}
	s.all(ctx, "settle", ops)
	return errs
}
