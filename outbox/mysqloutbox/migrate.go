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
const version = 2

//go:embed schema.sql
var schema string

// orderedKeys are what an ordered outbox has beside: an index of the rows of each key that have their place, and one of
// pending rows in the order in which they were written.
const orderedKeys = ",\n\tKEY `{table}_order` (order_hash, number),\n\tKEY `{table}_waiting` (state, number)"

// upgradeSQL makes tables of version 2 of those of version 1. There every name is a hash alone; see nameOf.
const upgradeSQL = "UPDATE `{table}` SET name = CONCAT(UNHEX(LEFT(REPLACE(id, '-', ''), 12)), LEFT(name, 26)) " +
	"WHERE LENGTH(id) = 36 AND CONVERT(id USING utf8mb4) COLLATE utf8mb4_bin REGEXP " +
	"'^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$' " +
	"AND LEFT(name, 6) <> UNHEX(LEFT(REPLACE(id, '-', ''), 12));\n" +
	"ALTER TABLE `{table}` DROP PRIMARY KEY, ADD PRIMARY KEY (name), DROP KEY `{table}_name`, " +
	"ADD KEY `{table}_number` (number), DROP KEY `{table}_next`, ADD KEY `{table}_next` (state, at, number)%s;\n" +
	"UPDATE `{table}_settings` SET version = 2"

const upgradeOrderedSQL = ", DROP KEY `{table}_order`, ADD KEY `{table}_order` (order_hash, number), " +
	"DROP KEY `{table}_waiting`, ADD KEY `{table}_waiting` (state, number)"

// upgrade are the statements that make version 2 of version 1.
func (o *Outbox) upgrade() string {
	keys := ""
	if o.cfg.Ordered {
		keys = o.in(upgradeOrderedSQL)
	}
	return o.sql(upgradeSQL, keys)
}

// SQL returns the statements that make the tables, for your own migration tool. You may repeat them. They leave tables
// of an older version as they are: for these, Plan has the statements.
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
	switch m.Found {
	case 0:
		m.SQL = o.SQL()
	case 1:
		m.SQL = o.upgrade()
	}
	return m, nil
}

// Migrate makes the tables where they are missing, and changes those of an older version. You may repeat it, and
// several processes may call it at once. It needs the privilege CREATE, for an older version also ALTER, INDEX, SELECT
// and UPDATE, and the storage engine InnoDB. Stop programs of an older version before: a message that they and newer
// ones write would be published twice, with the same ID. Programs that use the outbox need SELECT, INSERT, UPDATE and
// DELETE on Table, and SELECT and UPDATE on Table_settings, whose rows they lock.
//
// Errors: a *dedupstore.SetupError if the tables that are there do not fit the config.
func (o *Outbox) Migrate(ctx context.Context) error {
	found, err := o.found(ctx, o.db)
	switch {
	case err != nil:
		return err
	case found.version > 0 && found.ordered != o.cfg.Ordered:
		return o.mismatch(found)
	case found.version == 1:
		for statement := range strings.SplitSeq(o.upgrade(), ";\n") {
			// somebody was faster
			if _, err := o.db.ExecContext(ctx, statement); err != nil && number(err) != errNoKey {
				return fmt.Errorf("migrate outbox: %w", o.explain(err))
			}
		}
	}
	ours, err := sqlstore.RunScript(ctx, o.db, o.SQL(), o.cfg.Table, "message_key")
	switch {
	case err != nil:
		return fmt.Errorf("migrate outbox: %w", o.explain(err))
	case !ours:
		return o.unfit(nil, "is there, and is no outbox: name another one by Config.Table")
	}
	return o.check(ctx, o.db)
}

// settings are what all programs that share an outbox agree about.
type settings struct {
	version int
	ordered bool
	packet  int64  // of the server
	engine  string // of a table, if it is not InnoDB
}

// A querier is a database or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// found are the settings that are there; of version 0: there are none.
func (o *Outbox) found(ctx context.Context, q querier) (found settings, err error) {
	query := o.in("SELECT version, ordered, @@max_allowed_packet, (SELECT coalesce(max(engine), '') FROM " +
		"information_schema.tables WHERE table_schema = DATABASE() AND table_name IN ('{table}', '{table}_settings') " +
		"AND engine <> 'InnoDB') FROM `{table}_settings` WHERE number = 0")
	err = q.QueryRowContext(ctx, query).Scan(&found.version, &found.ordered, &found.packet, &found.engine)
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
	case found.engine != "":
		return o.unfit(nil, "or the one beside it has the storage engine %s, which has no transactions: change it by "+
			"ALTER TABLE … ENGINE=InnoDB", found.engine)
	case found.ordered != o.cfg.Ordered:
		return o.mismatch(found)
	}
	o.packet.Store(found.packet)
	return nil
}
