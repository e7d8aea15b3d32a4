package mysqloutbox

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// version is that of schema.sql.
const version = 1

//go:embed schema.sql
var schema string

// orderedKeys are what an ordered outbox has beside: an index of the rows of each key that have their place, and one of
// pending rows in the order in which they were written.
const orderedKeys = ",\n\tKEY `{table}_order` (order_hash),\n\tKEY `{table}_waiting` (state)"

// SQL returns the statements of Migrate, for your own migration tool. You may repeat them.
func (o *Outbox) SQL() string {
	keys, last := "", 0
	if o.cfg.Ordered {
		keys, last = o.in(orderedKeys), partitions
	}
	var rows []string
	for n := range last + 1 {
		rows = append(rows, fmt.Sprintf("(%d, %d, %t)", n, version, o.cfg.Ordered))
	}
	return strings.NewReplacer("{table}", o.cfg.Table, "{ordered}", keys,
		"{rows}", strings.Join(rows, ", ")).Replace(schema)
}

// Plan says what Migrate would do, and changes nothing.
func (o *Outbox) Plan(ctx context.Context) (dedupstore.Migration, error) {
	found, err := o.found(ctx, o.db)
	if err != nil {
		return dedupstore.Migration{}, err
	}
	m := dedupstore.Migration{Found: found.version, Wanted: version}
	if m.Found < version {
		m.SQL = o.SQL()
	}
	return m, nil
}

// Migrate makes the tables where they are missing. You may repeat it, and several processes may call it at once. It
// needs the privilege CREATE. Programs that use the outbox need SELECT, INSERT, UPDATE and DELETE on Table, and SELECT
// and UPDATE on Table_settings, whose rows they lock.
//
// Errors: a *dedupstore.SetupError if the tables that are there do not fit the config.
func (o *Outbox) Migrate(ctx context.Context) error {
	found, err := o.found(ctx, o.db)
	switch {
	case err != nil:
		return err
	case found.version > 0 && found.ordered != o.cfg.Ordered:
		return o.mismatch(found)
	}
	ours, err := sqlstore.RunScript(ctx, o.db, o.SQL(), o.cfg.Table, "message_key")
	switch {
	case err != nil:
		return fmt.Errorf("migrate outbox: %w", o.explain(err))
	case !ours:
		return o.unfit(nil, "is there, and is no outbox: name another one by Config.Table")
	}
	return nil
}

// settings are what all programs that share an outbox agree about.
type settings struct {
	version int
	ordered bool
	packet  int64 // of the server
}

// A querier is a database or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// found are the settings that are there; of version 0: there are none.
func (o *Outbox) found(ctx context.Context, q querier) (found settings, err error) {
	query := o.in("SELECT version, ordered, @@max_allowed_packet FROM `{table}_settings` WHERE number = 0")
	err = q.QueryRowContext(ctx, query).Scan(&found.version, &found.ordered, &found.packet)
	if err != nil && !errors.Is(err, sql.ErrNoRows) && number(err) != errNoTable {
		return settings{}, fmt.Errorf("look at outbox: %w", o.explain(err))
	}
	return found, nil
}

func (o *Outbox) mismatch(found settings) error {
	return o.unfit(nil, "was made with Ordered %v, but Config.Ordered is %v; all programs must say the same, and for "+
		"another setting there must be another table", found.ordered, o.cfg.Ordered)
}

// check makes sure, once for each Outbox, that the tables are there, new enough, and as the config says.
func (o *Outbox) check(ctx context.Context, q querier) error {
	if o.packet.Load() != 0 {
		return ctx.Err()
	}
	found, err := o.found(ctx, q)
	switch {
	case err != nil:
		return err
	case found.version == 0:
		return o.unfit(nil, "is missing in the connection's database: call Migrate")
	case found.version != version:
		return o.unfit(nil, "has schema version %d, want %d: call Migrate, or update the program",
			found.version, version)
	case found.ordered != o.cfg.Ordered:
		return o.mismatch(found)
	}
	o.packet.Store(found.packet)
	return nil
}
