package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

const (
	linearWorkers = 5
	linearOps     = 40
	linearTimeout = 60 * time.Millisecond // after which an answer counts as lost
)

// An impatient store gives up soon.
type impatient struct{ *Store }

func bounded[T any](ctx context.Context, do func(ctx context.Context) T) T {
	ctx, cancel := context.WithTimeout(ctx, linearTimeout)
	defer cancel()
	return do(ctx)
}

func (s impatient) Claim(ctx context.Context, r []dedupstore.Request) []dedupstore.ClaimResult {
	return bounded(ctx, func(ctx context.Context) []dedupstore.ClaimResult { return s.Store.Claim(ctx, r) })
}

func (s impatient) Extend(ctx context.Context, x []dedupstore.Extension) []error {
	return bounded(ctx, func(ctx context.Context) []error { return s.Store.Extend(ctx, x) })
}

func (s impatient) Settle(ctx context.Context, x []dedupstore.Settling) []error {
	return bounded(ctx, func(ctx context.Context) []error { return s.Store.Settle(ctx, x) })
}

// faults drops 3 % of the replies, and there are several to an operation. It delays some, and freezes some commands so
// long that their clients have gone.
func faults(seed uint64) func() mysqltest.Fault {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 1))
	return func() (f mysqltest.Fault) {
		mu.Lock()
		defer mu.Unlock()
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
	onlyProved(t)
	const histories = 200
	stores, proxy := behindProxy(t, nil)
	seed := rand.Uint64()
	classes := map[string]int{}
	undecided, illegal := 0, 0
	for i := range histories {
		history := history(t, stores, proxy, seed+uint64(i))
		for _, op := range history {
			classes[op.Output.(lineartest.Output).Class]++
		}
		switch porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute) {
		case porcupine.Unknown: // so much was unheard that all orders cannot be tried
			undecided++
		case porcupine.Illegal:
			illegal++
			t.Errorf("history %d (seed %d) is illegal", i, seed+uint64(i))
		}
	}
	t.Logf("seed %d: %d histories of %d operations, %d illegal, %d undecided; of %d commands %d frozen, %d replies "+
		"dropped, "+
		"%d delayed; answers %v", seed, histories, linearWorkers*linearOps, illegal, undecided, proxy.Commands(),
		proxy.Frozen(),
		proxy.Dropped(), proxy.Delayed(), classes)
	if undecided > 1+histories/50 {
		t.Errorf("%d of %d histories are undecided", undecided, histories)
	}
	if proxy.Dropped() < histories {
		t.Errorf("%d replies were dropped in %d histories", proxy.Dropped(), histories)
	}
	for _, class := range []dedupstore.Status{
		dedupstore.AcquiredRun, dedupstore.AcquiredPublish, dedupstore.Busy, dedupstore.Done, dedupstore.Mismatch,
	} {
		if classes[string(class)] == 0 {
			t.Errorf("no claim was answered %s", class)
		}
	}
}

// behindProxy returns a store for each worker, in one database. Change changes their statements; it may be nil.
func behindProxy(t *testing.T, change *strings.Replacer) (stores []*Store, proxy *mysqltest.Proxy) {
	t.Helper()
	server := mysqltest.Shared(t)
	d := server.NewDatabase(t)
	newStore(t, d.Open(t))
	proxy = mysqltest.StartProxy(t, server.Addr())
	config, err := mysql.ParseDSN(d.DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.Addr, config.Logger = proxy.Addr, &mysql.NopLogger{}
	for range linearWorkers {
		connector, err := mysql.NewConnector(config)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			connector = changing{connector, change}
		}
		db := sql.OpenDB(connector)
		t.Cleanup(func() { db.Close() })
		stores = append(stores, unmigrated(t, db, Config{}))
	}
	return stores, proxy
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

func history(t *testing.T, stores []*Store, proxy *mysqltest.Proxy, seed uint64) []porcupine.Operation {
	t.Helper()
	proxy.Inject(faults(seed))
	defer proxy.Inject(nil)
	workers := make([]dedupstore.Store, len(stores))
	for w, s := range stores {
		workers[w] = impatient{s}
	}
	pool := lineartest.Pool{Group: "linear-" + ids.New()}
	return pool.History(t.Context(), seed, workers, linearOps, func(err error) {
		if _, record := errors.AsType[*dedupstore.RecordError](err); record || number(err) != 0 && !conflicts(err) {
			t.Errorf("not an error of the network: %v", err)
		}
	})
}

// A checker that cannot fail proves nothing: stores that break one rule each are found out.
func TestLinearizable_BrokenStoresAreFoundOut(t *testing.T) {
	t.Parallel()
	onlyProved(t)
	for name, change := range map[string]*strings.Replacer{
		"records are read without a lock": strings.NewReplacer(" FOR UPDATE", ""),
		"records are made again":          strings.NewReplacer("INSERT IGNORE", "REPLACE"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stores, proxy := behindProxy(t, change)
			for i := range 200 {
				if porcupine.CheckOperationsTimeout(lineartest.Model(), history(t, stores, proxy, rand.Uint64()),
					time.Minute) == porcupine.Illegal {
					t.Logf("found out by history %d", i+1)
					return
				}
			}
			t.Error("200 histories look linearizable")
		})
	}
}

// onlyProved skips what takes a quiet machine or minutes.
func onlyProved(t *testing.T) {
	t.Helper()
	if !proof {
		t.Skip("make proof-linearizability runs it")
	}
}
