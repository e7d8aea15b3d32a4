package sqliteoutbox

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/outbox"
)

// An Outbox is a table of messages to be published. It is safe for concurrent use and holds nothing that must be
// closed; the database belongs to the caller.
type Outbox struct {
	db    *sql.DB
	table string
	sql   statements
	woken chan struct{}
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
func New(db *sql.DB, cfg Config) (*Outbox, error) {
	if db == nil {
		return nil, &dedupstore.InvalidError{Package: "sqliteoutbox", Field: "db", Problem: "is nil"}
	}
	cfg.Table = cmp.Or(cfg.Table, "oncemill_outbox")
	if problem := sqlstore.NameProblem(cfg.Table, 48); problem != "" {
		return nil, &dedupstore.InvalidError{Package: "sqliteoutbox", Field: "Config.Table", Problem: problem}
	}
	return &Outbox{db: db, table: cfg.Table, sql: statementsFor(cfg.Table),
		woken: make(chan struct{}, 1)}, nil
}

//go:embed schema.sql
var schema string

// Name implements [outbox.Named].
func (o *Outbox) Name() string { return o.table }

// Migrate makes the table and its indexes if they are missing. It only adds. It may be repeated, and called by several
// processes at once, while others use the outbox.
func (o *Outbox) Migrate(ctx context.Context) error {
	if _, err := o.db.ExecContext(ctx, o.sql.schema); err != nil {
		return fmt.Errorf("migrate outbox: %w", err)
	}
	return nil
}

// Plan says what Migrate would do, and changes nothing.
func (o *Outbox) Plan(ctx context.Context) (dedupstore.Migration, error) {
	m := dedupstore.Migration{Wanted: 1}
	err := o.db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?`,
		o.table).Scan(&m.Found)
	if err == nil && m.Found == 0 {
		m.SQL = o.sql.schema
	}
	return m, err
}

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

// now is the store's clock: the process's, in microseconds.
func now() int64 { return time.Now().UnixMicro() }

// list is a JSON array, for json_each.
func list[T int64 | ~string](values []T) string {
	b, _ := json.Marshal(append([]T{}, values...)) // never null; it cannot fail for numbers and strings
	return string(b)
}

// An execer is a database, a connection or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// change runs a statement and says how many rows it changed.
func change(ctx context.Context, db execer, query string, args ...any) (int, error) {
	result, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// statements are the SQL of one table.
type statements struct {
	schema, insert, find                           string
	lease, published, removed, unsent, back, clean string
	stats, requeue, revive, discard, replay        string
}

func statementsFor(table string) statements {
	in := func(query string) string { return strings.ReplaceAll(query, "{table}", table) }
	return statements{
		schema: in(schema),
		insert: in(insertSQL), find: in(findSQL),
		lease: in(leaseSQL), published: in(publishedSQL), removed: in(removedSQL), unsent: in(unsentSQL),
		back: in(backSQL), clean: in(cleanSQL),
		stats: in(statsSQL), requeue: in(requeueSQL), revive: in(reviveSQL),
		discard: in(discardSQL), replay: in(replaySQL),
	}
}
