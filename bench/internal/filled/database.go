package filled

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/bench/internal/servers"
)

// Connections are enough for what is done at once.
const Connections = 64

// A Database is one on a server of its own.
type Database struct {
	*sql.DB
	Pool *pgxpool.Pool // of PostgreSQL

	name   string
	quote  string // around names
	settle string // a statement about a table that has been filled
	atOnce int    // how many statements may fill it
	kit.Cleanups
}

// Postgres starts PostgreSQL.
func Postgres(ctx context.Context) (*Database, error) {
	server, err := kit.StartPostgres()
	if err != nil {
		return nil, err
	}
	d := &Database{name: "postgres", quote: `"`, settle: "VACUUM ANALYZE ", atOnce: 2}
	d.Cleanup(server.Stop)
	if d.Pool, err = server.Pool(ctx, Connections); err != nil {
		return nil, errors.Join(err, d.Clean())
	}
	d.DB = stdlib.OpenDBFromPool(d.Pool)
	d.Cleanup(kit.Quiet(d.Pool.Close), d.Close)
	return d, nil
}

// MySQL starts MariaDB. Statements that fill a table with AUTO_INCREMENT wait for each other.
func MySQL(context.Context) (*Database, error) {
	db, giveBack, err := servers.StartMySQL(Connections)
	if err != nil {
		return nil, err
	}
	return &Database{
		DB: db, name: "mysql", quote: "`", settle: "ANALYZE TABLE ", atOnce: 2, Cleanups: kit.Cleanups{giveBack},
	}, nil
}

// SQLite opens a file.
func SQLite(context.Context) (*Database, error) {
	db, giveBack, err := servers.OpenSQLite()
	if err != nil {
		return nil, err
	}
	return &Database{
		DB: db, name: "sqlite", quote: `"`, settle: "PRAGMA wal_checkpoint(TRUNCATE) -- ", atOnce: 1,
		Cleanups: kit.Cleanups{giveBack},
	}, nil
}

// Differing are columns of a copy that are not those of its row, in SQL. There, x is the row, and i the number of the
// copy.
type Differing struct {
	Columns map[string]string
	Expired map[string]string // of one that Clean removes
}

// Pair opens two of a kind in a database, each over a table of its own, and copies the rows of the second, until it has
// so many records. Open makes the table and [Seeds] rows. Expire makes as many that Clean removes.
func Pair[S any](
	ctx context.Context, b *kit.Bench, d *Database, differ Differing,
	open func(ctx context.Context, table string, expire func(context.Context) error) (S, error),
) (*kit.Pair[S], error) {
	p := &kit.Pair[S]{Cleanups: d.Cleanups}
	half := func(table string, copies int) (s S, err error) {
		var expired atomic.Int64
		expire := func(ctx context.Context) error {
			n := 1_000_000_000 + int(expired.Add(1)) // no other copy has such a number
			return d.copyRows(ctx, table, n, n, differ.Columns, differ.Expired)
		}
		if s, err = open(ctx, table, expire); err != nil {
			return s, err
		}
		keep := fmt.Sprintf("CREATE TABLE %s_seeds AS SELECT * FROM %[1]s", table)
		if _, err := d.ExecContext(ctx, keep); err != nil {
			return s, err
		}
		err = fill(ctx, b, d.name, d.atOnce, copies, func(ctx context.Context, from, to int) error {
			return d.copyRows(ctx, table, from, to, differ.Columns)
		})
		if err == nil {
			_, err = d.ExecContext(ctx, d.settle+table)
		}
		return s, err
	}
	var err error
	if p.Empty, err = half("mill_empty", 0); err == nil {
		p.Full, err = half("mill_full", copies(b))
	}
	if err != nil {
		return nil, errors.Join(err, p.Clean())
	}
	return p, nil
}

// copyRows copies each seed once for each number of from to to.
func (d *Database) copyRows(ctx context.Context, table string, from, to int, differing ...map[string]string) error {
	rows, err := d.QueryContext(ctx, "SELECT * FROM "+table+"_seeds LIMIT 0")
	if err != nil {
		return err
	}
	columns, err := rows.Columns()
	err = errors.Join(err, rows.Err(), rows.Close()) //nolint:sqlclosecheck // before the next statement
	if err != nil {
		return err
	}
	values := make([]string, len(columns))
	for i, column := range columns {
		columns[i] = d.quote + column + d.quote
		values[i] = "x." + columns[i]
		for _, differ := range differing {
			if value, does := differ[column]; does {
				values[i] = value
			}
		}
	}
	_, err = d.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (%s) WITH RECURSIVE n (i) AS "+
		"(SELECT %d UNION ALL SELECT i + 1 FROM n WHERE i < %d) SELECT %s FROM %[1]s_seeds AS x CROSS JOIN n",
		table, strings.Join(columns, ", "), from, to, strings.Join(values, ", ")))
	return err
}
