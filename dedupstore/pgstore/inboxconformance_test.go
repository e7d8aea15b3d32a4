package pgstore

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

func TestInbox_Conforms(t *testing.T) {
	t.Parallel()
	inboxConforms(t, Config{}, (*Store).Inbox, onPgx)
}

func TestInbox_ConformsUnderSerializable(t *testing.T) {
	t.Parallel()
	inboxConforms(t, Config{Isolation: pgx.Serializable}, (*Store).Inbox, onPgx)
}

func TestInboxSQL_Conforms(t *testing.T) {
	t.Parallel()
	inboxConforms(t, Config{Isolation: pgx.RepeatableRead}, (*Store).InboxSQL, onSQL)
}

// A handle is what a test does with a transaction, whatever it is of.
type handle struct {
	exec func(ctx context.Context, query string, args ...any) error
	scan func(ctx context.Context, query string, dest any) error
}

func onPgx(ctx context.Context) handle {
	tx := Tx(ctx)
	return handle{func(ctx context.Context, query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}, func(ctx context.Context, query string, dest any) error { return tx.QueryRow(ctx, query).Scan(dest) }}
}

func onSQL(ctx context.Context) handle {
	tx := SQLTx(ctx)
	return handle{func(ctx context.Context, query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}, func(ctx context.Context, query string, dest any) error {
		return tx.QueryRowContext(ctx, query).Scan(dest)
	}}
}

// A commit's answer is lost between PgBouncer and its server.
func TestInbox_ConformsBehindPgBouncer(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Shared(t).NewDatabase(t).DSN()
	direct, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(direct.Close)
	mustExec(t, direct, `CREATE TABLE effects (id text NOT NULL, run bigint NOT NULL)`)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, u.Host)
	u.Host = p.addr.String()
	inboxConformsOn(t, direct, postgrestest.PgBouncerPool(t, u.String()), p, Config{}, (*Store).Inbox, onPgx)
}

func inboxConforms(t *testing.T, cfg Config, form func(*Store) dedupstore.Transactor, on func(context.Context) handle) {
	t.Helper()
	direct := newPool(t)
	pool, p := behind(t, direct)
	inboxConformsOn(t, direct, pool, p, cfg, form, on)
}

func inboxConformsOn(t *testing.T, direct, pool *pgxpool.Pool, p *proxy, cfg Config,
	form func(*Store) dedupstore.Transactor, on func(context.Context) handle) {
	t.Helper()
	var tables atomic.Int64
	lose := &losses{byPort: map[int]fault{}, silent: map[int]chan struct{}{}}
	p.inject(lose.decide)
	t.Run("suite", func(t *testing.T) {
		storetest.RunInbox(t, func(t *testing.T) storetest.InboxSubject {
			// Tables of its own: SERIALIZABLE refuses neighbours in a page, and in a small table all are neighbours.
			own := cfg
			own.Table = fmt.Sprint("records_", tables.Add(1))
			newStore(t, direct, own)
			return storetest.InboxSubject{
				Inbox: form(unmigrated(t, pool, own)),
				Effect: func(ctx context.Context, name string) error {
					return on(ctx).exec(ctx, `INSERT INTO effects VALUES ($1, 1)`, name)
				},
				Effects: func(ctx context.Context, name string) (n int, err error) {
					err = direct.QueryRow(ctx, `SELECT count(*) FROM effects WHERE id = $1`, name).Scan(&n)
					return n, err
				},
				Conflict: func(ctx context.Context) error {
					return on(ctx).exec(ctx, `DO $$ BEGIN
						RAISE EXCEPTION 'conflict' USING ERRCODE = 'serialization_failure'; END $$`)
				},
				Abort: func(ctx context.Context) { _ = on(ctx).exec(ctx, `SELECT 1/0`) },
				LoseCommit: func(ctx context.Context, applied bool) {
					f := cutBefore
					if applied {
						f = cutAfter
					}
					lose.next(t, on(ctx), ctx, f)
				},
				VanishWithin: 10 * leastSilence,
				Vanish: func(ctx context.Context) error {
					lock := fmt.Sprintf(`SELECT pg_advisory_xact_lock(hashtextextended('%s', 0))`, own.Table)
					if err := on(ctx).exec(ctx, lock); err != nil {
						return err
					}
					lose.silence(t, on(ctx), ctx)
					_, err := direct.Exec(ctx, lock)
					return err
				},
			}
		})
	})
}

// losses are connections that are to fail at their commits.
type losses struct {
	mu     sync.Mutex
	byPort map[int]fault
	silent map[int]chan struct{} // closed at the end of the test
}

// silence lets a connection fall silent until the test ends.
func (l *losses) silence(t *testing.T, h handle, ctx context.Context) {
	var port int
	if err := h.scan(ctx, `SELECT inet_client_port()`, &port); err != nil {
		t.Error(err)
	}
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent[port] = over
}

func (l *losses) next(t *testing.T, h handle, ctx context.Context, f fault) {
	var port int
	if err := h.scan(ctx, `SELECT inet_client_port()`, &port); err != nil {
		t.Error(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byPort[port] = f
}

func (l *losses) decide(port int, request string) fault {
	l.mu.Lock()
	silent := l.silent[port]
	l.mu.Unlock()
	if silent != nil {
		<-silent
		return cutBefore
	}
	if !commits(request) {
		return faithful
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.byPort[port]
	delete(l.byPort, port)
	return f
}

// commits reports whether a request ends a transaction. The inbox settles in the same one.
func commits(request string) bool { return commit.MatchString(request) }

var commit = regexp.MustCompile(`(?i)\bcommit\b`) // not synchronous_commit
