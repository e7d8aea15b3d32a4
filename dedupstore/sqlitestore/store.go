package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// A Store keeps dedup records in a table of an SQLite database. It is safe for concurrent use and holds nothing that
// must be closed; the database belongs to the caller. It grants leased claims; [Store.Inbox] is its transactional form.
type Store struct {
	db         *sql.DB
	config     Config
	log        *slog.Logger
	gate       gate
	queue      queue
	runs       runs
	preparing  sync.Mutex
	prepared   atomic.Bool
	statements statements
	reading    chan struct{} // one reader at a time: with the writer two connections, which database/sql keeps

	// What tests change.
	commit func(*lockedTx) error // of a run
	rest   time.Duration         // of RunCleaning, when there is nothing left to remove
}

var (
	_ dedupstore.Batcher = (*Store)(nil)
	_ dedupstore.Checker = (*Store)(nil)
)

// New returns a store in a database that was opened with the driver modernc.org/sqlite. It does not talk to it: call
// Migrate once before the first use, and Check to learn whether the database is opened as it should be. The error names
// the field of the config that is wrong.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, &dedupstore.InvalidError{Field: "db", Problem: "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{
		db: db, config: cfg, log: cfg.Logger, reading: make(chan struct{}, 1),
		gate:   gate{line: make(chan struct{}, 1), turn: make(chan struct{}, 1)},
		commit: (*lockedTx).commit, rest: time.Minute,
	}
	s.queue.store = s
	return s, nil
}

// usable is what every operation begins with.
func (s *Store) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r, found := txctx.From[*running](ctx); found && r.store.db == s.db && !r.over.Load() {
		return ErrNested
	}
	return s.prepare(ctx)
}

func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, s.extendOne)
}

// Extend implements [dedupstore.Store]. The run may have the write lock itself, in its inbox or after Join. Then nobody
// can take the claim over, and the extension follows when the lock is free.
func (s *Store) extendOne(ctx context.Context, x dedupstore.Extension) error {
	c, lease := x.Claim, x.Lease

	if err := sqlstore.ValidateExtend(c, lease); err != nil {
		return err
	}
	if err := s.usable(ctx); err != nil {
		return err
	}
	op := newOperation(c.Key.String(), func(rec *record, now int64) (bool, error) {
		if rec.state == dedupstore.Finished && rec.heldBy(c) && s.runs.has(c) {
			return false, nil // the handler has committed, and will return
		}
		err := rec.extend(c, lease, now)
		if err != nil {
			s.runs.leave(c) // the next heartbeat is told
		}
		return err == nil, err
	})
	s.queue.add(op)
	if s.runs.has(c) {
		return nil
	}
	return op.await(ctx)
}

func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

// Settle implements [dedupstore.Store].
func (s *Store) settleOne(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	return s.Settle(ctx, []dedupstore.Settling{{Claim: c, Settlement: settlement}})[0]
}

// SettleMany implements [dedupstore.Batcher].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	errs := make([]error, len(settlings))
	all := make([]*operation, len(settlings))
	var ops []*operation
	for i, settling := range settlings {
		if all[i], errs[i] = s.settling(ctx, settling.Claim, settling.Settlement); errs[i] == nil {
			ops = append(ops, all[i])
		}
	}
	s.queue.add(ops...)
	for i, op := range all {
		if op == nil {
			continue
		}
		err := op.await(ctx)
		if err == nil || errors.Is(err, dedupstore.ErrClaimLost) || errors.Is(err, sqlstore.ErrJoinedOutputs) {
			s.runs.leave(settlings[i].Claim)
		}
		errs[i] = noRoom(err)
	}
	return errs
}

func (s *Store) settling(
	ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement,
) (*operation, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := dedupstore.ValidateSettlement(settlement); err != nil {
		return nil, err
	}
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	return newOperation(c.Key.String(), func(rec *record, now int64) (bool, error) {
		return rec.settle(c, settlement, now)
	}), nil
}
