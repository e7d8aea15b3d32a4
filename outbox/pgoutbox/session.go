package pgoutbox

import (
	"context"
	"database/sql"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A statement is a query with its arguments.
type statement struct {
	query string
	args  []any
}

// A session is the caller's transaction, of pgx or of database/sql.
type session interface {
	// each runs statements in one round trip if it can, and calls fn for each row of the last one.
	each(ctx context.Context, last statement, fn eachRowFunc, before ...statement) error

	// Arrays as the driver takes them.
	texts([]string) any
	numbers([]int64) any
	blobs([][]byte) any
}

// pgxSession is a transaction of pgx.
type pgxSession struct{ tx pgx.Tx }

func (s pgxSession) each(ctx context.Context, last statement, fn eachRowFunc, before ...statement) error {
	var batch pgx.Batch
	for _, b := range append(before, last) {
		batch.Queue(b.query, b.args...)
	}
	return eachOfBatch(s.tx.SendBatch(ctx, &batch), len(before), fn)
}

// An eachRowFunc takes a row.
type eachRowFunc = func(scan func(...any) error) error

// eachOfBatch skips the results of the first statements, and calls each function for the rows of one of the others.
func eachOfBatch(results pgx.BatchResults, skip int, fns ...eachRowFunc) error {
	err := func() error {
		for range skip {
			if _, err := results.Exec(); err != nil {
				return err
			}
		}
		for _, fn := range fns {
			rows, err := results.Query()
			if err != nil {
				return err
			}
			if err := eachRow(rows, fn); err != nil {
				return err
			}
		}
		return nil
	}()
	if closed := results.Close(); err == nil {
		err = closed
	}
	return err
}

func eachRow(rows pgx.Rows, fn eachRowFunc) error {
	defer rows.Close()
	scan := rows.Scan // once: each mention allocates
	for rows.Next() {
		if err := fn(scan); err != nil {
			return err
		}
	}
	rows.Close()
	return rows.Err()
}

func (pgxSession) texts(v []string) any  { return v }
func (pgxSession) numbers(v []int64) any { return v }
func (pgxSession) blobs(v [][]byte) any  { return v }

// sqlSession is a transaction of database/sql, with any driver for PostgreSQL. It sends arrays as text, because drivers
// differ there.
type sqlSession struct{ tx *sql.Tx }

func (s sqlSession) each(ctx context.Context, last statement, fn eachRowFunc, before ...statement) error {
	for _, b := range before {
		if _, err := s.tx.ExecContext(ctx, b.query, b.args...); err != nil {
			return err
		}
	}
	rows, err := s.tx.QueryContext(ctx, last.query, last.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := fn(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func (sqlSession) texts(v []string) any {
	return array(len(v), func(b *strings.Builder, i int) {
		b.WriteByte('"')
		b.WriteString(escapes.Replace(v[i]))
		b.WriteByte('"')
	})
}

func (sqlSession) numbers(v []int64) any {
	return array(len(v), func(b *strings.Builder, i int) { b.WriteString(strconv.FormatInt(v[i], 10)) })
}

func (sqlSession) blobs(v [][]byte) any {
	return array(len(v), func(b *strings.Builder, i int) {
		b.WriteString(`"\\x`)
		b.WriteString(hex.EncodeToString(v[i]))
		b.WriteByte('"')
	})
}

func array(n int, element func(*strings.Builder, int)) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		element(&b, i)
	}
	b.WriteByte('}')
	return b.String()
}
