package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"
)

// A server takes statements from a pool of one connection, and answers as a test says.
type server struct {
	got    []string         // statements, in their order
	fails  map[string]error // by what a statement contains
	rows   []int64          // of every query
	unread error            // instead of the end of the rows
	closed int              // connections
	open   int              // rows and prepared statements
}

var errServer = errors.New("the server says no")

// pool returns a pool of connections to the server. At its end nothing may be open.
func (s *server) pool(t *testing.T) *sql.DB {
	db := sql.OpenDB(s)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() {
		if n := db.Stats().InUse; n != 0 || s.open != 0 {
			t.Errorf("%d connections are in use, %d rows and statements are open", n, s.open)
		}
		db.Close()
	})
	return db
}

func (s *server) take(statement string) error {
	s.got = append(s.got, statement)
	for part, err := range s.fails {
		if strings.Contains(statement, part) {
			return err
		}
	}
	return nil
}

func (s *server) Connect(context.Context) (driver.Conn, error) {
	if err := s.take("connect"); err != nil {
		return nil, err
	}
	return serverConn{s}, nil
}

func (s *server) Driver() driver.Driver { return nil }

type serverConn struct{ *server }

func (c serverConn) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }

func (c serverConn) Close() error {
	c.closed++
	return nil
}

func (c serverConn) Prepare(query string) (driver.Stmt, error) {
	if err := c.take("prepare " + query); err != nil {
		return nil, err
	}
	c.open++
	return serverStmt{c.server, query}, nil
}

func (c serverConn) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if err := c.take(query); err != nil {
		return nil, err
	}
	return changed{c.server}, nil
}

func (c serverConn) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if err := c.take(query); err != nil {
		return nil, err
	}
	c.open++
	return &serverRows{c.server, c.rows}, nil
}

type serverStmt struct {
	*server
	query string
}

func (s serverStmt) NumInput() int { return 1 }

func (s serverStmt) Query([]driver.Value) (driver.Rows, error) { return nil, errors.ErrUnsupported }

func (s serverStmt) Exec(args []driver.Value) (driver.Result, error) {
	if err := s.take(s.query + " with " + string(args[0].([]byte))); err != nil {
		return nil, err
	}
	return changed{s.server}, nil
}

func (s serverStmt) Close() error {
	s.open--
	return nil
}

// changed is the result of a statement that changed three rows.
type changed struct{ *server }

func (c changed) LastInsertId() (int64, error) { return 0, errors.ErrUnsupported }

func (c changed) RowsAffected() (int64, error) { return 3, c.fails["rows affected"] }

type serverRows struct {
	*server
	left []int64
}

func (r *serverRows) Columns() []string { return []string{"n"} }

func (r *serverRows) Close() error {
	r.open--
	return nil
}

func (r *serverRows) Next(to []driver.Value) error {
	if len(r.left) == 0 {
		if r.unread != nil {
			return r.unread
		}
		return io.EOF
	}
	to[0], r.left = r.left[0], r.left[1:]
	return nil
}
