package pgoutbox

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
)

// An Outbox is a table of messages to be published. It is safe for concurrent use and holds nothing that must be
// closed; the pool belongs to the caller.
type Outbox struct {
	pool    *pgxpool.Pool
	cfg     Config
	sql     statements
	checked atomic.Bool // the schema is there, and as the config says
	whole   atomic.Bool // that is checked, and the pool's user sees all rows
	woken   chan struct{}
}

var (
	_ outbox.Store     = (*Outbox)(nil)
	_ outbox.Waker     = (*Outbox)(nil)
	_ outbox.Inspector = (*Outbox)(nil)
	_ outbox.Replayer  = (*Outbox)(nil)
	_ outbox.Named     = (*Outbox)(nil)
)

// New returns an outbox in a database. It does not talk to it: call Migrate once before the first use. The error names
// the field of the config that is wrong.
func New(pool *pgxpool.Pool, cfg Config) (*Outbox, error) {
	if pool == nil {
		return nil, &dedupstore.InvalidError{Package: "pgoutbox", Field: "pool", Problem: "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Outbox{pool: pool, cfg: cfg, sql: statementsFor(cfg), woken: make(chan struct{}, 1)}, nil
}

// Find returns an outbox as New does, for tools that may not know how it was made: if its tables are there, they decide
// about Config.Ordered.
func Find(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Outbox, error) {
	o, err := New(pool, cfg)
	if err != nil {
		return nil, err
	}
	found, err := o.found(ctx)
	if err != nil {
		return nil, err
	}
	if found.version > 0 && found.ordered != cfg.Ordered {
		cfg.Ordered = found.ordered
		return New(pool, cfg)
	}
	return o, nil
}

// Name implements [outbox.Named].
func (o *Outbox) Name() string {
	if o.cfg.Schema == "" {
		return o.cfg.Table
	}
	return o.cfg.Schema + "." + o.cfg.Table
}

// Wake makes a relay of this process look at the outbox now instead of at its next poll. Call it after the commit. It
// never blocks, and several calls may cause one look. Notify does the same for other processes.
func (o *Outbox) Wake() {
	select {
	case o.woken <- struct{}{}:
	default: // a signal is waiting already, and the look that it causes is still to come
	}
}

// Woken implements [outbox.Waker].
func (o *Outbox) Woken() <-chan struct{} { return o.woken }
