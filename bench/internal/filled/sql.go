package filled

import (
	"context"
	"database/sql"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
)

// A tableStore is a store in a table.
type tableStore interface {
	dedupstore.Inspector
	Migrate(ctx context.Context) error
	Inbox() dedupstore.Transactor
	Clean(ctx context.Context, limit int) (int, error)
}

// effectsTable is what handlers in the inbox write to.
const effectsTable = "CREATE TABLE effects (id VARCHAR(200) NOT NULL)"

// stores makes two stores in one database.
func stores(
	ctx context.Context, b *kit.Bench, d *Database, differ Differing, make func(table string) (tableStore, error),
	effect func(ctx context.Context, id string) error,
) (*kit.Pair[*Store], error) {
	if _, err := d.ExecContext(ctx, effectsTable); err != nil {
		return nil, err
	}
	p, err := Pair(ctx, b, d, differ, func(
		ctx context.Context, table string, expire func(context.Context) error,
	) (*Store, error) {
		store, err := make(table)
		if err != nil {
			return nil, err
		}
		if err := store.Migrate(ctx); err != nil {
			return nil, err
		}
		s := &Store{Inspector: store, Inbox: store.Inbox(), Effect: effect, Clean: store.Clean, Expire: expire}
		return s, s.seed(ctx)
	})
	if err == nil {
		p.Full.copies = copies(b)
	}
	return p, err
}

func openPostgres(ctx context.Context, b *kit.Bench) (*kit.Pair[*Store], error) {
	d, err := Postgres(ctx)
	if err != nil {
		return nil, err
	}
	const key = "replace(x.key, 'charge:', 'charge:' || lpad(n.i::text, 10, '0') || '-')"
	const yesterday = "now() - interval '1 day'"
	return stores(ctx, b, d, Differing{
		Columns: map[string]string{"key": key, "id": "substring(sha256((" + key + ")::bytea) FOR 16)"},
		Expired: map[string]string{"expires_at": yesterday, "clean_at": yesterday},
	}, func(table string) (tableStore, error) {
		return pgstore.New(d.Pool, pgstore.Config{Table: table})
	}, func(ctx context.Context, id string) error {
		_, err := pgstore.Tx(ctx).Exec(ctx, "INSERT INTO effects (id) VALUES ($1)", id)
		return err
	})
}

func openMySQL(ctx context.Context, b *kit.Bench) (*kit.Pair[*Store], error) {
	d, err := MySQL(ctx)
	if err != nil {
		return nil, err
	}
	const key = "REPLACE(x.record_key, 'charge:', CONCAT('charge:', LPAD(n.i, 10, '0'), '-'))"
	return stores(ctx, b, d, Differing{
		Columns: map[string]string{"record_key": key, "id": "UNHEX(LEFT(SHA2(" + key + ", 256), 32))"},
		Expired: map[string]string{"expires_at": "1"},
	}, func(table string) (tableStore, error) {
		return mysqlstore.New(d.DB, mysqlstore.Config{Table: table})
	}, effectIn(mysqlstore.Tx))
}

func openSQLite(ctx context.Context, b *kit.Bench) (*kit.Pair[*Store], error) {
	d, err := SQLite(ctx)
	if err != nil {
		return nil, err
	}
	return stores(ctx, b, d, Differing{
		Columns: map[string]string{
			"key": "replace(x.key, 'charge:', 'charge:' || printf('%010d', n.i) || '-')", "number": "NULL",
		},
		Expired: map[string]string{"expires_at": "1"},
	}, func(table string) (tableStore, error) {
		return sqlitestore.New(d.DB, sqlitestore.Config{Table: table})
	}, effectIn(sqlitestore.Tx))
}

func effectIn(tx func(context.Context) *sql.Tx) func(context.Context, string) error {
	return func(ctx context.Context, id string) error {
		_, err := tx(ctx).ExecContext(ctx, "INSERT INTO effects (id) VALUES (?)", id)
		return err
	}
}
