// Package sqltest is for tests of stores on SQL databases: it tells which statements they send.
package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"maps"
	"regexp"
	"slices"
	"sync"
	"testing"
)

// A Recorder keeps the statements that pools send. The zero value is ready to use.
type Recorder struct {
	mu     sync.Mutex
	byForm map[string]string
}

// Open returns a pool whose statements are kept. It is closed when the test ends.
func (r *Recorder) Open(t testing.TB, c driver.Connector) *sql.DB {
	db := sql.OpenDB(connector{c, r})
	t.Cleanup(func() { db.Close() })
	return db
}

// Statements returns one statement of each form, in the order of their text: the last that was sent or prepared. A
// form is a statement without its constants, and without the number of values in a list.
func (r *Recorder) Statements() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Values(r.byForm))
}

var (
	constant = regexp.MustCompile(`x'[0-9a-f]*'|\b\d+\b`)
	list     = regexp.MustCompile(`(\?,)+`)
)

// Form is a statement for people, and the same for all that differ in their constants only.
func Form(statement string) string {
	return list.ReplaceAllString(constant.ReplaceAllString(statement, "?"), "…,")
}

func (r *Recorder) note(statement string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byForm == nil {
		r.byForm = map[string]string{}
	}
	r.byForm[Form(statement)] = statement
}

type connector struct {
	driver.Connector
	recorder *Recorder
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	to, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return conn{to.(full), c.recorder}, nil
}

// full is what the connections of all drivers are that have a store here.
type full interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type conn struct {
	full
	recorder *Recorder
}

// CheckNamedValue implements [driver.NamedValueChecker], which not all drivers do.
func (c conn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, does := c.full.(driver.NamedValueChecker); does {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	c.recorder.note(query)
	return c.full.PrepareContext(ctx, query)
}

func (c conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.recorder.note(query)
	return c.full.ExecContext(ctx, query, args)
}

func (c conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.recorder.note(query)
	return c.full.QueryContext(ctx, query, args)
}
