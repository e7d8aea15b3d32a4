package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

// MySQLDSN is an address, mysql://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETERS, as the driver reads it.
func MySQLDSN(at *url.URL) string {
	user := at.User.Username()
	if password, has := at.User.Password(); has {
		user += ":" + password
	}
	host := net.JoinHostPort(cmp.Or(at.Hostname(), "127.0.0.1"), cmp.Or(at.Port(), "3306"))
	dsn := fmt.Sprintf("%s@tcp(%s)/%s", user, host, url.PathEscape(strings.TrimPrefix(at.Path, "/")))
	if at.RawQuery != "" {
		dsn += "?" + at.RawQuery
	}
	return dsn
}

// MySQLNow is MySQL's time when a statement began, in microseconds since 1970. It does not depend on the time zone of
// the session, and has no hour twice.
const MySQLNow = Expr(`TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`)

// An Expr is SQL that AppendRow takes as it is.
type Expr string

// AppendRow appends values in parentheses, as MySQL reads them: numbers, and bytes in hexadecimal. So nothing depends
// on character sets, sql_mode or the driver's way with arguments, and one round trip does.
func AppendRow(b []byte, values ...any) []byte {
	b = append(b, '(')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, v)
	}
	return append(b, ')')
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case Expr:
		return append(b, v...)
	case string:
		return appendHex(b, []byte(v))
	case []byte:
		if v == nil {
			return append(b, "NULL"...)
		}
		return appendHex(b, v)
	case bool:
		if v {
			return append(b, '1')
		}
		return append(b, '0')
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case uint64:
		return strconv.AppendUint(b, v, 10)
	}
	panic(fmt.Sprintf("sqlstore: a value of type %T", v))
}

func appendHex(b, value []byte) []byte {
	return append(hex.AppendEncode(append(b, "x'"...), value), '\'')
}

// A Querier is a database, a connection or a transaction.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// EachRow calls a function for each row that a query finds, until it returns an error. io.EOF ends it without one.
func EachRow(ctx context.Context, q Querier, query string, row func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return rows.Err()
}

// Change runs a statement, and says how many rows it changed.
func Change(ctx context.Context, q Querier, query string) (int, error) {
	result, err := q.ExecContext(ctx, query)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// ChangeLarge is Change with an argument that may be as large as max_allowed_packet. The driver sends it as it is,
// whatever interpolateParams says.
func ChangeLarge(ctx context.Context, q Querier, query string, value []byte) (int, error) {
	stmt, err := q.PrepareContext(ctx, query)
	if err != nil {
		return 0, err
	}
	defer stmt.Close()
	result, err := stmt.ExecContext(ctx, value)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// Tries is how often something is tried that the server refuses because of others.
const Tries = 10

// Again repeats what the server refused because of others.
func Again(ctx context.Context, refused func(error) bool, try func() error) (err error) {
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 50 * time.Millisecond}
	for range Tries {
		if err = try(); !refused(err) || !pace.Sleep(ctx, pace.Jitter(pauses.Next())) {
			break
		}
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// RunScript runs statements that end with a semicolon and a new line, one after the other. It reports false, and runs
// none, if a table is there and has not got a column: it is somebody else's.
func RunScript(ctx context.Context, q Querier, script, table, column string) (ours bool, err error) {
	others := 0
	query := fmt.Sprintf("SELECT count(*) FROM information_schema.tables AS t WHERE table_schema = DATABASE() AND "+
		"table_name = '%s' AND NOT EXISTS (SELECT 1 FROM information_schema.columns AS c WHERE c.table_schema = "+
		"t.table_schema AND c.table_name = t.table_name AND c.column_name = '%s')", table, column)
	err = EachRow(ctx, q, query, func(rows *sql.Rows) error { return rows.Scan(&others) })
	if err != nil || others > 0 {
		return false, err
	}
	for _, statement := range strings.Split(strings.TrimSpace(script), ";\n") {
		if _, err := q.ExecContext(ctx, statement); err != nil {
			return true, err
		}
	}
	return true, nil
}
