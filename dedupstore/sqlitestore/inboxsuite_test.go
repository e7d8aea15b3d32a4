package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

// TestInbox_Conforms leaves the conflicts out: a transaction that has the write lock is refused at its commit, if ever,
// and that has tests of its own.
func TestInbox_Conforms(t *testing.T) {
	t.Parallel()
	storetest.RunInbox(t, func(t *testing.T) storetest.InboxSubject {
		s, db := newStore(t)
		mustExec(t, db, `CREATE TABLE effects (name TEXT NOT NULL, once INTEGER UNIQUE)`)
		l := &losses{lost: map[*sql.Tx]bool{}}
		s.commit = l.commit
		return storetest.InboxSubject{
			Inbox: s.Inbox(),
			Effect: func(ctx context.Context, name string) error {
				_, err := Tx(ctx).ExecContext(ctx, `INSERT INTO effects (name) VALUES (?)`, name)
				return err
			},
			Effects: func(ctx context.Context, name string) (n int, err error) {
				err = db.QueryRowContext(ctx, `SELECT count(*) FROM effects WHERE name = ?`, name).Scan(&n)
				return n, err
			},
			InUse: func() int { return db.Stats().InUse },
			Abort: func(ctx context.Context) { // SQLite ends the transaction by itself
				for range 2 {
					_, _ = Tx(ctx).ExecContext(ctx, `INSERT OR ROLLBACK INTO effects (name, once) VALUES ('twice', 1)`)
				}
			},
			LoseCommit: l.lose,
			HideRecord: func(_ dedupstore.Claim, hidden bool) {
				if hidden { // when the commit is lost
					l.hide = func() { mustExec(t, db, `ALTER TABLE oncemill_dedup RENAME TO hidden`) }
					return
				}
				l.hide = nil
				mustExec(t, db, `ALTER TABLE hidden RENAME TO oncemill_dedup`)
			},
		}
	})
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

func (l *losses) commit(t *lockedTx) error {
	l.mu.Lock()
	applied, lost := l.lost[t.Tx]
	l.mu.Unlock()
	switch {
	case !lost:
		return t.commit()
	case applied:
		if err := t.commit(); err != nil {
			return err
		}
	default:
		t.abort()
	}
	if l.hide != nil {
		l.hide()
	}
	return errors.New("disk I/O error")
}
