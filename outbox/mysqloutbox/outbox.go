package mysqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/outbox"
)

// An Outbox is a table of messages to be published. It is safe for concurrent use and holds nothing that must be
// closed; the pool belongs to the caller.
type Outbox struct {
	db     *sql.DB
	cfg    Config
	packet atomic.Int64 // max_allowed_packet; 0: the tables have not been looked at
	woken  chan struct{}
}

var (
	_ outbox.Store     = (*Outbox)(nil)
	_ outbox.Waker     = (*Outbox)(nil)
	_ outbox.Inspector = (*Outbox)(nil)
	_ outbox.Replayer  = (*Outbox)(nil)
	_ outbox.Named     = (*Outbox)(nil)
)

// New returns an outbox in the database that a pool of the driver github.com/go-sql-driver/mysql connects to. It does
// not talk to it: call Migrate once before the first use. The error names the field of the config that is wrong.
func New(db *sql.DB, cfg Config) (*Outbox, error) {
	if db == nil {
		return nil, &dedupstore.InvalidError{Package: "mysqloutbox", Field: "db", Problem: "is nil"}
	}
	cfg.Table = cmp.Or(cfg.Table, "oncemill_outbox")
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Outbox{db: db, cfg: cfg, woken: make(chan struct{}, 1)}, nil
}

// Find returns an outbox as New does, for tools that may not know how it was made: if its tables are there, they decide
// about Config.Ordered.
func Find(ctx context.Context, db *sql.DB, cfg Config) (*Outbox, error) {
	o, err := New(db, cfg)
	if err != nil {
		return nil, err
	}
	found, err := o.found(ctx, db)
	if err != nil {
		return nil, err
	}
	if found.version > 0 && found.ordered != cfg.Ordered {
		cfg.Ordered = found.ordered
		return New(db, cfg)
	}
	return o, nil
}

// Name implements [outbox.Named].
func (o *Outbox) Name() string { return o.cfg.Table }

// Wake makes a relay of this process look at the outbox now instead of at its next poll. Call it after the commit. It
// never blocks, and several calls may cause one look.
func (o *Outbox) Wake() {
	select {
	case o.woken <- struct{}{}:
	default: // a signal is waiting already, and the look that it causes is still to come
	}
}

// Woken implements [outbox.Waker].
func (o *Outbox) Woken() <-chan struct{} { return o.woken }

// in names the tables in a statement.
func (o *Outbox) in(query string) string { return strings.ReplaceAll(query, "{table}", o.cfg.Table) }

// sql is a statement with names and values.
func (o *Outbox) sql(query string, values ...any) string { return fmt.Sprintf(o.in(query), values...) }

// list is values in parentheses, which is also how one of them is written.
func list(values ...any) string { return string(sqlstore.AppendRow(nil, values...)) }

// silence is how long the server keeps a transaction whose host says nothing, with its locks: twice what an operation
// of a relay may take.
const silence = 20 * time.Second

// inTx runs fn in a transaction, and again when the server refuses it because of others.
func (o *Outbox) inTx(ctx context.Context, fn func(sqlstore.Querier) error) error {
	if err := o.check(ctx, o.db); err != nil {
		return err
	}
	return o.explain(sqlstore.Again(ctx, conflicts, func() error { return sqlstore.InMySQLTx(ctx, o.db, silence, fn) }))
}

// Numbers of MySQL's and MariaDB's errors.
const (
	errDBDenied      = 1044
	errNoDatabase    = 1046
	errUnknownColumn = 1054
	errNoKey         = 1091
	errTableDenied   = 1142
	errNoTable       = 1146
	errChanged       = 1020 // MariaDB, innodb_snapshot_isolation
	errLockTimeout   = 1205
	errDeadlock      = 1213
	errReadOnly      = 1290
)

func number(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// conflicts reports whether the server refused a transaction, or a statement of it, because of others.
func conflicts(err error) bool {
	n := number(err)
	return n == errDeadlock || n == errLockTimeout || n == errChanged
}

// unfit says that the tables are missing, too old, or made for another config. Err is the server's error.
func (o *Outbox) unfit(err error, problem string, args ...any) error {
	return &dedupstore.SetupError{
		Package: "mysqloutbox", Subject: fmt.Sprintf("outbox table %q", o.cfg.Table),
		Problem: fmt.Sprintf(problem, args...), Err: err,
	}
}

// explain names the cause of an error that the server knows only by its own words.
func (o *Outbox) explain(err error) error {
	switch number(err) {
	case errNoTable:
		return o.unfit(err, "or one beside it is missing in the connection's database: call Migrate")
	case errUnknownColumn:
		return o.unfit(err, "lacks a column: call Migrate")
	case errNoDatabase:
		return o.unfit(err, "is in no database: name it in the DSN")
	case errDBDenied, errTableDenied:
		return o.unfit(err, "may not be used by the database user: see Migrate for what it has to be granted")
	case errReadOnly:
		return o.unfit(err, "is on a server that only reads: connect to the primary")
	}
	return err
}
