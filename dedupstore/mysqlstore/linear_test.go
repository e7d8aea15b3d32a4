package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

// faults drops 3 % of the replies, and there are several to an operation. It delays some, and freezes some commands so
// long that their clients have gone.
func faults(seed uint64) func() mysqltest.Fault {
	rnd := lineartest.Rand(seed)
	return func() (f mysqltest.Fault) {
		switch n := rnd.IntN(200); {
		case n < 1:
			f.Freeze = 50*time.Millisecond + time.Duration(rnd.IntN(50))*time.Millisecond
		case n < 7:
			f.Drop = true
		case n < 20:
			f.Delay = time.Duration(rnd.IntN(3000)) * time.Microsecond
		}
		return f
	}
}

// TestLinearizable_WithLostAndDelayedReplies runs 200 histories of 200 operations.
func TestLinearizable_WithLostAndDelayedReplies(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
	proxy, history := histories(t, nil)
	lineartest.Linearizable(t, 200, proxy, history)
	t.Logf("%d commands, %d frozen", proxy.Commands(), proxy.Frozen())
}

// histories makes them of stores in one database. Change changes their statements; it may be nil.
func histories(t *testing.T, change *strings.Replacer) (*mysqltest.Proxy, func(seed uint64) lineartest.History) {
	t.Helper()
	server := mysqltest.Shared(t)
	d := server.NewDatabase(t)
	newStore(t, d.Open(t))
	proxy := mysqltest.StartProxy(t, server.Addr())
	config, err := mysql.ParseDSN(d.DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.Addr, config.Logger = proxy.Addr, &mysql.NopLogger{}
	crowd := lineartest.Crowd{Network: func(err error) bool {
		_, record := errors.AsType[*dedupstore.RecordError](err)
		return !record && (number(err) == 0 || conflicts(err))
	}}
	for range lineartest.Workers {
		connector, err := mysql.NewConnector(config)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			connector = changing{connector, change}
		}
		db := sql.OpenDB(connector)
		t.Cleanup(func() { db.Close() })
		crowd.Stores = append(crowd.Stores,
			lineartest.Impatient{Store: unmigrated(t, db, Config{}), Timeout: 60 * time.Millisecond})
	}
	return proxy, func(seed uint64) lineartest.History {
		proxy.Inject(faults(seed))
		defer proxy.Inject(nil)
		return crowd.History(t, seed)
	}
}

// A changing connector changes statements.
type changing struct {
	driver.Connector
	change *strings.Replacer
}

func (c changing) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return changingConn{conn.(mysqlConn), c.change}, nil
}

type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type changingConn struct {
	mysqlConn
	change *strings.Replacer
}

func (c changingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.mysqlConn.ExecContext(ctx, c.change.Replace(query), args)
}

func (c changingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.mysqlConn.QueryContext(ctx, c.change.Replace(query), args)
}

// A checker that cannot fail proves nothing: stores that break one rule each are found out.
func TestLinearizable_BrokenStoresAreFoundOut(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
	for name, change := range map[string]*strings.Replacer{
		"records are read without a lock": strings.NewReplacer(" FOR UPDATE SKIP LOCKED", "", " FOR UPDATE", ""),
		"records are made again":          strings.NewReplacer("INSERT IGNORE", "REPLACE"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, history := histories(t, change)
			lineartest.FoundOut(t, 200, history)
		})
	}
}
