package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

func TestStore_Conforms(t *testing.T) {
	t.Parallel()
	conforms(t, newDB(t))
}

// TestStore_ConformsWhateverTheSession shows that nothing depends on the parameters of the DSN.
func TestStore_ConformsWhateverTheSession(t *testing.T) {
	t.Parallel()
	if !proof {
		t.Skip("set ONCEMILL_PROOF=1; TestInbox_Conforms has the same session")
	}
	conforms(t, newDB(t, oddSession))
}

func oddSession(c *mysql.Config) {
	c.ClientFoundRows, c.InterpolateParams, c.ParseTime, c.Collation = true, true, true, "latin1_swedish_ci"
	c.Params = map[string]string{
		"time_zone": "'+05:30'", "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
		"tx_isolation": "'SERIALIZABLE'",
	}
}

func conforms(t *testing.T, db *sql.DB) {
	t.Helper()
	s := newStore(t, db)
	t.Run("suite", func(t *testing.T) { // which ends when its cases have, before the pool is closed
		storetest.Run(t, func(t *testing.T) storetest.Subject {
			return storetest.Subject{Store: s, TTL: func(k dedupstore.Key) (time.Duration, bool) {
				id := sqlstore.IDOf(k.String())
				found, now, err := s.load(t.Context(), db, []string{id}, "")
				if err != nil {
					t.Error(err)
				}
				if found[id] == nil {
					return 0, false
				}
				return found[id].Expires.Sub(now), true
			}}
		})
	})
}

func TestStore_ConformsBesideWhatIsStuck(t *testing.T) {
	t.Parallel()
	storetest.RunStuck(t, func(t *testing.T) storetest.Subject {
		proxy := mysqltest.StartProxy(t, mysqltest.Shared(t).Addr())
		s := newStore(t, newDB(t, func(c *mysql.Config) { c.Addr = proxy.Addr }))
		if err := s.usable(t.Context()); err != nil {
			t.Fatal(err)
		}
		return storetest.Subject{
			Store: s,
			Lock:  func(k dedupstore.Key) func() { return lock(t, s, k) },
			Stall: func(arrives bool) func() { return proxy.Stall("autocommit = 1", arrives) },
		}
	})
}

// lock changes the record of a key, or makes it, in a transaction that stays open until release.
func lock(t *testing.T, s *Store, k dedupstore.Key) (release func()) {
	t.Helper()
	tx, err := s.db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	id := sqlstore.IDOf(k.String())
	found, _, err := s.load(t.Context(), tx, []string{id}, " FOR UPDATE")
	rec := found[id]
	if rec == nil {
		rec = &sqlstore.Row{ID: id, Key: k.String(), Stored: dedupstore.Stored{State: dedupstore.Running, Fence: 1}}
	}
	if err := cmp.Or(err, s.save(t.Context(), tx, []*sqlstore.Row{rec})); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}

func TestInbox_Conforms(t *testing.T) {
	t.Parallel()
	d := mysqltest.Shared(t).NewDatabase(t)
	other := d.Open(t)
	mustExec(t, other, effectsTable)
	mustExec(t, other, "CREATE TABLE locks (name VARCHAR(100) PRIMARY KEY)")
	var tables atomic.Int64
	t.Run("suite", func(t *testing.T) { // which ends when its cases have, before the database is dropped
		storetest.RunInbox(t, func(t *testing.T) storetest.InboxSubject {
			return inboxSubject(t, d.Open(t, oddSession), other, fmt.Sprintf("dedup_%d", tables.Add(1)))
		})
	})
}

// inboxSubject is an inbox with a table of its own.
func inboxSubject(t *testing.T, db, other *sql.DB, table string) storetest.InboxSubject {
	t.Helper()
	s := unmigrated(t, db, Config{Table: table})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.usable(t.Context()); err != nil { // it knows the server
		t.Fatal(err)
	}
	l := &losses{lost: map[*sql.Tx]bool{}}
	s.commit = l.commit
	subject := storetest.InboxSubject{
		Inbox:  s.Inbox(),
		Effect: effect,
		Effects: func(ctx context.Context, name string) (n int, err error) {
			err = db.QueryRowContext(ctx, `SELECT count(*) FROM effects WHERE name = ?`, name).Scan(&n)
			return n, err
		},
		InUse:      func() int { return db.Stats().InUse },
		Conflict:   func(ctx context.Context) error { return deadlock(ctx, t, other) },
		Abort:      func(ctx context.Context) { _, _ = Tx(ctx).ExecContext(ctx, "ROLLBACK") },
		LoseCommit: l.lose,
		HideRecord: func(_ dedupstore.Claim, hidden bool) {
			if hidden { // when the commit is lost
				l.hide = func() { mustExec(t, db, "RENAME TABLE "+table+" TO "+table+"_hidden") }
				return
			}
			l.hide = nil
			mustExec(t, db, "RENAME TABLE "+table+"_hidden TO "+table)
		},
	}
	if proof { // it takes a minute
		subject.VanishWithin = 10 * leastSilence
		subject.Vanish = func(ctx context.Context) error {
			if err := exec(ctx, "INSERT INTO locks VALUES ('"+table+"')"); err != nil {
				return err
			}
			for { // each wait for a lock has its own limit
				_, err := other.ExecContext(ctx, "REPLACE INTO locks VALUES ('"+table+"')")
				if number(err) != errLockTimeout {
					return err
				}
			}
		}
	}
	return subject
}

// losses are commits whose answers are lost, by whether they are applied.
type losses struct {
	mu   sync.Mutex
	lost map[*sql.Tx]bool
	hide func() // nil: records stay readable
}

func (l *losses) lose(ctx context.Context, applied bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost[Tx(ctx)] = applied
}

func (l *losses) commit(ctx context.Context, tx *sql.Tx) error {
	l.mu.Lock()
	applied, lost := l.lost[tx]
	l.mu.Unlock()
	switch {
	case !lost:
		return commit(ctx, tx)
	case applied:
		if err := commit(ctx, tx); err != nil {
			return err
		}
	default:
		if err := tx.Rollback(); err != nil {
			return err
		}
	}
	if l.hide != nil {
		l.hide()
	}
	return errors.New("the connection is lost")
}

func BenchmarkStore(b *testing.B) {
	s := newStore(b, newDB(b))
	storetest.Benchmarks(b, func(*testing.B) dedupstore.Store { return s })
}
