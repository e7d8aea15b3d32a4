package mysqlstore

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
)

// The pool is the caller's: the transactions of his own must be as they are without a store.
func TestStore_LeavesTheNextTransactionsOfThePoolAsTheyAre(t *testing.T) {
	t.Parallel()
	db := newDB(t, func(c *mysql.Config) { c.Params = map[string]string{"tx_isolation": "'SERIALIZABLE'"} })
	s := newStore(t, db)
	db.SetMaxOpenConns(1)
	c := runOf(t, s, "1")
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"a renewal", func() error {
			return dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: c, Lease: long})
		}},
		{"a check, which rolls back", func() error {
			_, err := s.Check(t.Context())
			return err
		}},
		{"a settlement", func() error { return dedupstore.SettleOne(t.Context(), s, c, success) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("INSERT INTO effects VALUES ('level')"); err != nil {
			t.Fatal(err)
		}
		if !runsAt(t.Context(), tx, "SERIALIZABLE") {
			t.Errorf("after %s the next transaction is not SERIALIZABLE as the session is", step.what)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
}

// looksAtLevels: the server makes the view anew only when nobody has looked at it for 100 ms, so that tests which look
// side by side would keep it old.
var looksAtLevels sync.Mutex

// runsAt reports whether a transaction that has written has a level.
func runsAt(ctx context.Context, tx *sql.Tx, level string) (is bool) {
	looksAtLevels.Lock()
	defer looksAtLevels.Unlock()
	for end := time.Now().Add(5 * time.Second); !is && time.Now().Before(end); {
		<-time.After(120 * time.Millisecond)
		_ = tx.QueryRowContext(ctx, "SELECT count(*) > 0 FROM information_schema.innodb_trx WHERE "+
			"trx_mysql_thread_id = CONNECTION_ID() AND trx_isolation_level = ?", level).Scan(&is)
	}
	return is
}

// A duplicate that sees an outcome before it is committed would be acknowledged, though it may be rolled back.
func TestStore_RefusesSessionsThatReadWhatIsNotCommitted(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	newStore(t, d)
	db := newDB(t, func(c *mysql.Config) { c.Params = map[string]string{"tx_isolation": "'READ-UNCOMMITTED'"} })
	s := unmigrated(t, db, Config{})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := dedupstore.ClaimOne(t.Context(), s, request("1"))
	wantSetup(t, err, "transaction isolation")
}

// completion_type makes of each COMMIT a COMMIT AND CHAIN, after which the session does not tell that there was one.
func TestInbox_ACommitIsSeenWhateverTheCompletionType(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "SET completion_type = 1"} {
		db := newDB(t, func(c *mysql.Config) { c.Params = map[string]string{"completion_type": "1"} })
		s := newStore(t, db)
		for way, run := range oneRun {
			runs := 0
			err := run(t, s, request(way), func(ctx context.Context) (dedupstore.Settlement, error) {
				runs++
				if before != "" {
					if _, err := Tx(ctx).ExecContext(ctx, before); err != nil {
						t.Error(err)
					}
				}
				if err := effect(ctx, way); err != nil {
					return nil, err
				}
				_, err := Tx(ctx).ExecContext(ctx, "COMMIT")
				return success, err
			})
			if err == nil || runs != 1 || !strings.Contains(err.Error(), "ended") {
				t.Errorf("%s, with %q: %d runs, %v; want one that has ended its transaction", way, before, runs, err)
			}
			wantEffects(t, db, way, 1)
		}
	}
}
