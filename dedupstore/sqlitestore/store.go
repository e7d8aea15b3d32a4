package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
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
	gate       gate
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
	_ dedupstore.Inspector = (*Store)(nil)
	_ dedupstore.Checker   = (*Store)(nil)
)

// New returns a store in a database that was opened with the driver modernc.org/sqlite. It does not talk to it. Call
// Migrate once before the first use, and Check to learn whether the database is opened well. The error names the field
// of the config that is wrong.
//
// The store waits for the write lock on its own and needs no busy_timeout. The program's transactions do: open the
// database with _journal_mode=WAL, _busy_timeout=10000 and _txlock=immediate. Allow more than one connection, and use
// no cache=shared, under which claims wait for handlers. Beside very many records a claim reads more pages than fit in
// SQLite's cache, 2 MB a connection, which each write of another connection empties. Set PRAGMA mmap_size there, in
// bytes and up to 2147418112: all connections then read the pages that the system keeps in memory.
//
// The file must be on a local disk, because SQLite's locks do not work on network file systems. While a process has it
// open, nothing else may replace, move or delete it or its -wal and -shm files: what is committed after that is lost.
// In that process only one SQLite library may open it, because closing the file drops the locks of the whole process.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, &dedupstore.InvalidError{Package: "sqlitestore", Field: "db", Problem: "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Store{
		db: db, config: cfg, gate: newGate(), reading: make(chan struct{}, 1),
		commit: (*lockedTx).commit, rest: time.Minute,
	}, nil
}

// usable checks what every operation needs: a live context, no run of this database around it, and the right table.
func (s *Store) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r, found := txctx.Around[*running](ctx); found && r.store.db == s.db && !r.over.Load() {
		return ErrNested
	}
	return s.prepare(ctx)
}

// Extend implements [dedupstore.Store]. If a run has the write lock itself, in its inbox or after Join, nobody can take
// its claim over. Its Extend succeeds at once, and the extension is written when the lock is free.
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	errs := make([]error, len(extensions))
	unusable := s.usable(ctx)
	var ops []sqlstore.Operation
	for i, x := range extensions {
		if errs[i] = cmp.Or(x.Validate(), unusable); errs[i] != nil {
			continue
		}
		op := sqlstore.NewOperation(x.Claim.Key, &errs[i])
		op.Apply = func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error) {
			if rec.State == dedupstore.Finished && sqlstore.OwnedBy(rec, x.Claim) && s.runs.has(x.Claim) {
				return nil, nil // the handler has committed, and will return
			}
			next, err := rec.Extend(x, now)
			if err != nil {
				s.runs.leave(x.Claim) // the next heartbeat is told
			}
			return next, err
		}
		if s.runs.has(x.Claim) {
			go s.follow(ctx, op, x.Lease)
		} else {
			ops = append(ops, op)
		}
	}
	s.do(ctx, ops)
	return errs
}

// follow writes an extension when the lock is free. It gives up at the lease's end, when another extension has come.
// Nobody waits for its result.
func (s *Store) follow(ctx context.Context, op sqlstore.Operation, lease time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lease)
	defer cancel()
	op.Err = new(error)
	s.do(ctx, []sqlstore.Operation{op})
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	errs := make([]error, len(settlings))
	unusable := s.usable(ctx)
	var ops []sqlstore.Operation
	for i, x := range settlings {
		errs[i] = cmp.Or(x.Claim.Validate(), dedupstore.ValidateSettlement(x.Settlement), unusable)
		if errs[i] == nil {
			op := sqlstore.NewOperation(x.Claim.Key, &errs[i])
			op.Apply = func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error) {
				return sqlstore.Settle(rec, x.Claim, x.Settlement, now)
			}
			ops = append(ops, op)
		}
	}
	s.do(ctx, ops)
	for i, err := range errs {
		if err == nil || errors.Is(err, dedupstore.ErrClaimLost) || errors.Is(err, sqlstore.ErrJoinedOutputs) {
			s.runs.leave(settlings[i].Claim)
		}
	}
	return errs
}
