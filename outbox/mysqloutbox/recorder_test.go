package mysqloutbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/producer"
)

// A conn is what the driver's connections can do.
type conn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

// A recorder is a connector whose connections tell each statement after it has run, and on which one.
type recorder struct {
	driver.Connector
	tell func(ctx context.Context, query string, c conn)
}

func (r recorder) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := r.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return recordedConn{c.(conn), r.tell}, nil
}

type recordedConn struct {
	conn
	tell func(ctx context.Context, query string, c conn)
}

func (c recordedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	result, err := c.conn.ExecContext(ctx, query, args)
	if err == nil {
		c.tell(ctx, query, c.conn)
	}
	return result, err
}

func (c recordedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.conn.QueryContext(ctx, query, args)
	return toldRows{rows, func() { c.tell(ctx, query, c.conn) }}, err
}

// toldRows tell their statement when they are closed: until then the connection is busy.
type toldRows struct {
	driver.Rows
	tell func()
}

func (r toldRows) Close() error {
	err := r.Rows.Close()
	r.tell()
	return err
}

// recorded opens a pool that tells its statements.
func recorded(t *testing.T, d *mysqltest.Database, tell func(ctx context.Context, query string, c conn)) *sql.DB {
	t.Helper()
	config, err := mysql.ParseDSN(d.DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(recorder{connector, tell})
	t.Cleanup(func() { db.Close() })
	return db
}

// waitTimeout are wait_timeout and autocommit of a connection.
func waitTimeout(ctx context.Context, t *testing.T, c conn) string {
	t.Helper()
	rows, err := c.QueryContext(ctx, "SELECT @@wait_timeout, @@autocommit", nil)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer rows.Close()
	values := make([]driver.Value, 2)
	if err := rows.Next(values); err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("%d %d", values[0], values[1])
}

// work does everything that an outbox can do, once at least.
func work(t *testing.T, box *mysqloutbox.Outbox, db *sql.DB) {
	t.Helper()
	ctx := t.Context()
	large := message("k", "large")
	large.Payload = make([]byte, 128<<10)
	mustWrite(t, box, db, message("k", "published"), large, message("", "removed"), message("", "dead"),
		message("", "failed"), message("", "unknown"), message("", "discarded"), message("", "back"))
	mustWrite(t, box, db, message("k", "published"))
	state := map[string]outbox.State{
		"published": outbox.Published, "large": outbox.Published, "removed": outbox.Removed, "dead": outbox.Dead,
		"discarded": outbox.Dead, "failed": outbox.Failed, "unknown": outbox.Unknown,
	}
	var results []outbox.Result
	for _, r := range relaytest.Lease(t, box, "t", time.Minute) {
		if s := state[r.Message.ID]; s != "" {
			results = append(results, outbox.Result{Number: r.Number, State: s, Error: "refused"})
		}
	}
	relaytest.Settle(t, box, "t", results...)
	mustWrite(t, box, db, message("", "dead")) // it is pending again
	relaytest.LeaseKind(t, box, "u", time.Minute, true)
	for _, do := range []func() error{
		func() error { _, err := box.Stats(ctx); return err },
		func() error { _, err := box.List(ctx, outbox.Filter{}, ""); return err },
		func() error { _, err := box.List(ctx, outbox.Filter{ID: "dead", Header: true}, "3/1/1"); return err },
		func() error { _, err := box.Count(ctx, outbox.Filter{}, ""); return err },
		func() error {
			_, err := box.Requeue(ctx, outbox.RowInfo{ID: "dead"}, outbox.RowInfo{ID: "discarded"})
			return err
		},
		func() error {
			rows := relaytest.Lease(t, box, "v", time.Minute)
			var again []outbox.Result
			for _, r := range rows {
				again = append(again, outbox.Result{Number: r.Number, State: outbox.Dead})
			}
			relaytest.Settle(t, box, "v", again...)
			_, err := box.Discard(ctx, outbox.RowInfo{ID: "discarded"})
			return err
		},
		func() error {
			_, err := box.Replay(ctx, outbox.ReplayRequest{Before: time.Now().Add(time.Hour), IDs: []string{"large"},
				Topic: "orders", Since: time.Now().Add(-time.Hour), Limit: 1})
			return err
		},
		func() error {
			_, err := box.Replay(ctx, outbox.ReplayRequest{Before: time.Now().Add(time.Hour), Limit: 1,
				Header: producer.Header{"a": "b"}})
			return err
		},
		func() error { _, err := box.Clean(ctx, 0, 10); return err },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
}
