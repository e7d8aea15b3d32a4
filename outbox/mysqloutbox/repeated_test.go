package mysqloutbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/producer"
)

// waitLimit is for what takes some milliseconds on a quiet machine.
const waitLimit = 2 * time.Minute

var levels = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead}

func begin(t *testing.T, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// read makes a transaction at REPEATABLE READ see the database as it is now.
func read(t *testing.T, tx *sql.Tx) {
	t.Helper()
	var n int
	if err := tx.QueryRowContext(t.Context(), "SELECT count(*) FROM oncemill_outbox").Scan(&n); err != nil {
		t.Fatal(err)
	}
}

// TestPublish_RepeatedBlocksNoOthers: others write at any place between the names, in a small table and in a large one.
func TestPublish_RepeatedBlocksNoOthers(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		for _, rows := range []int{1, 500} {
			for _, removed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %d rows, removed %v", level, rows, removed), func(t *testing.T) {
					t.Parallel()
					db := newDB(t)
					box := boxIn(t, db, mysqloutbox.Config{})
					for i := range rows {
						mustWrite(t, box, db, message("", fmt.Sprint("kept ", i)))
					}
					if removed {
						read(t, begin(t, db, sql.LevelRepeatableRead)) // the server must not purge it
						mustExec(t, db, "DELETE FROM oncemill_outbox WHERE id = 'kept 0'")
					}
					tx := begin(t, db, level)
					if err := box.InSQL(tx).Publish(t.Context(), message("", "kept 0")); err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
					defer cancel()
					for i := range 200 {
						if err := write(ctx, box, db, message("", fmt.Sprint("other ", i))); err != nil {
							t.Fatalf("after %d messages: %v", i, err)
						}
					}
				})
			}
		}
	}
}

// TestPublish_RepeatedBlocksNoRelay: a relay publishes the messages of others while a writer has a row locked.
func TestPublish_RepeatedBlocksNoRelay(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("ordered %v, %s", ordered, level), func(t *testing.T) {
				t.Parallel()
				db := newDB(t)
				cfg := mysqloutbox.Config{Ordered: ordered}
				box := boxIn(t, db, cfg)
				tx := begin(t, db, level)
				read(t, tx)
				mustWrite(t, box, db, message("", "repeated"))
				if err := box.InSQL(tx).Publish(t.Context(), message("", "repeated")); err != nil {
					t.Fatal(err)
				}
				var b relaytest.Broker
				relaytest.Start(t, unmigrated(t, db, cfg), &b, relaytest.Quick())
				for i := range 20 {
					mustWrite(t, box, db, message("", fmt.Sprint("other ", i)))
				}
				relaytest.Eventually(t, "others are published", func() bool { return len(b.Messages()) >= 20 })
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				relaytest.Eventually(t, "all are published", func() bool { return len(b.Copies()) == 21 })
			})
		}
	}
}

// TestSettle_PassesOverLockedRows: of a batch, the row that a writer has locked is settled when the writer ends.
func TestSettle_PassesOverLockedRows(t *testing.T) {
	t.Parallel()
	for _, state := range []outbox.State{outbox.Published, outbox.Removed, outbox.Failed, outbox.Unknown, outbox.Dead} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			box := boxIn(t, db, mysqloutbox.Config{})
			for i := range 10 {
				mustWrite(t, box, db, message("", fmt.Sprint(i)))
			}
			var results []outbox.Result
			for _, r := range relaytest.Lease(t, box, "t", time.Minute) {
				results = append(results, outbox.Result{Number: r.Number, State: state, Delay: time.Hour})
			}
			tx := begin(t, db, sql.LevelReadCommitted)
			if err := box.InSQL(tx).Publish(t.Context(), message("", "3")); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			settled := make(chan error, 1)
			go func() { settled <- box.Settle(ctx, "t", results) }()
			leased := func() (n int) {
				err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM oncemill_outbox WHERE token = 't'").Scan(&n)
				if err != nil {
					t.Error(err)
				}
				return n
			}
			relaytest.Eventually(t, "the others are settled", func() bool { return leased() == 1 })
			cancel()
			if err := <-settled; !errors.Is(err, context.Canceled) {
				t.Errorf("while the row is locked Settle returned %v, want that its context has ended", err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			if err := box.Settle(t.Context(), "t", results); err != nil || leased() != 0 {
				t.Errorf("then %d rows are leased, %v", leased(), err)
			}
		})
	}
}

// TestLease_OrderedStopsAtLockedRows: what is behind a row that a writer has locked waits with it.
func TestLease_OrderedStopsAtLockedRows(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	box := boxIn(t, db, mysqloutbox.Config{Ordered: true})
	for i := range 3 {
		mustWrite(t, box, db, message("a", fmt.Sprint("a", i)), message("b", fmt.Sprint("b", i)))
	}
	tx := begin(t, db, sql.LevelReadCommitted)
	if err := box.InSQL(tx).Publish(t.Context(), message("a", "a1")); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(relaytest.IDs(relaytest.Lease(t, box, "t", time.Minute))); got != "[a0 b0 b1 b2]" {
		t.Errorf("leased %s, want nothing of a from the locked row on", got)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	relaytest.Settle(t, box, "t")
	if rows := relaytest.Lease(t, box, "u", time.Minute); len(rows) != 6 {
		t.Errorf("then leased %v, want all", relaytest.IDs(rows))
	}
}

// TestLease_OrderedPassesOverManyLockedRows: more than a lease takes may be locked, or wait for what is.
func TestLease_OrderedPassesOverManyLockedRows(t *testing.T) {
	t.Parallel()
	for _, suspects := range []bool{false, true} {
		db := newDB(t)
		box := boxIn(t, db, mysqloutbox.Config{Ordered: true})
		const many = 250 // beside relaytest.Lease's 100
		var all, repeated []producer.Message
		for i := range many {
			of := func(key string) producer.Message { return message(key, fmt.Sprintf("%d of %q", i, key)) }
			all = append(all, of("a"), of(""), of(fmt.Sprint(i)))
			repeated = append(repeated, all[3*i+1:]...)
		}
		repeated = append(repeated, all[0])
		mustWrite(t, box, db, append(all, message("b", "b0"))...)
		if suspects { // as after a broker that answered none
			mustExec(t, db, "UPDATE oncemill_outbox SET state = 1, unknowns = 1, token = NULL")
		}
		tx := begin(t, db, sql.LevelReadCommitted)
		if err := box.InSQL(tx).Publish(t.Context(), repeated...); err != nil {
			t.Fatal(err)
		}
		rows := relaytest.LeaseKind(t, box, "t", time.Minute, suspects)
		if got := fmt.Sprint(relaytest.IDs(rows)); got != "[b0]" {
			t.Errorf("suspects %v: leased %s, want what nobody has locked", suspects, got)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if rows := relaytest.LeaseKind(t, box, "u", time.Minute, suspects); len(rows) != 100 {
			t.Errorf("suspects %v: then leased %d rows, want a whole batch", suspects, len(rows))
		}
	}
}

// TestPublish_RevivesWhatDiedAfterTheFirstRead: what a transaction sees of the database may be older than the death.
func TestPublish_RevivesWhatDiedAfterTheFirstRead(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		db := newDB(t)
		box := boxIn(t, db, mysqloutbox.Config{})
		mustWrite(t, box, db, message("k", "1"))
		tx := begin(t, db, level)
		read(t, tx)
		rows := relaytest.Lease(t, box, "t", time.Minute)
		relaytest.Settle(t, box, "t", outbox.Result{Number: rows[0].Number, State: outbox.Dead, Error: "refused"})
		if err := box.InSQL(tx).Publish(t.Context(), message("k", "1")); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if s := relaytest.Stats(t, box); s.Pending != 1 || s.Dead != 0 {
			t.Errorf("%s: %+v, want one pending row", level, s)
		}
	}
}

// TestDiscard_AndARepeatedPublish: a message that is written again is not lost, whoever comes first.
func TestDiscard_AndARepeatedPublish(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		for _, first := range []string{"Discard", "Publish"} {
			t.Run(fmt.Sprintf("%s, %s first", level, first), func(t *testing.T) {
				t.Parallel()
				db := newDB(t)
				box := boxIn(t, db, mysqloutbox.Config{})
				mustWrite(t, box, db, message("k", "1"))
				rows := relaytest.Lease(t, box, "t", time.Minute)
				relaytest.Settle(t, box, "t", outbox.Result{Number: rows[0].Number, State: outbox.Dead, Error: "refused"})
				tx := begin(t, db, level)
				read(t, tx)
				discarded := make(chan error, 1)
				discard := func() {
					_, err := box.Discard(context.Background(), outbox.RowInfo{ID: "1"})
					discarded <- err
				}
				if first == "Discard" {
					discard()
				}
				if err := box.InSQL(tx).Publish(t.Context(), message("k", "1")); err != nil {
					t.Fatal(err)
				}
				if first == "Publish" {
					go discard()
				}
				if err := errors.Join(tx.Commit(), <-discarded); err != nil {
					t.Fatal(err)
				}
				if s := relaytest.Stats(t, box); s.Pending != 1 || s.Dead != 0 {
					t.Errorf("%+v, want one pending row", s)
				}
			})
		}
	}
}
