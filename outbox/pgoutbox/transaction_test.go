package pgoutbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

func awkward() []producer.Message {
	return []producer.Message{
		{ID: `1"\{},`, Topic: `a\b "c"`, Key: "customer ☃ NULL", Payload: []byte{0, 1, 0xff, '\'', '\\'}, Header: producer.Header{"Content-Type": `say "é" <b> ` + "\x00"}},
		{ID: "2", Topic: "NULL"},
		{ID: "3", Topic: "c", Payload: make([]byte, 1<<20)},
	}
}

func checkAwkward(t *testing.T, rows []outbox.Row) {
	t.Helper()
	want := awkward()
	if len(rows) != len(want) {
		t.Fatalf("%d rows, want %d", len(rows), len(want))
	}
	for i, r := range rows {
		got, w := r.Message, want[i]
		if got.ID != w.ID || got.Topic != w.Topic || got.Key != w.Key || !bytes.Equal(got.Payload, w.Payload) || got.Header["Content-Type"] != w.Header["Content-Type"] || got.Header[producer.HeaderID] != w.ID {
			t.Errorf("row %d is %q %q %q %q with %d bytes", i, got.ID, got.Topic, got.Key, got.Header, len(got.Payload))
		}
	}
}

func TestOutbox_WorksInEachModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		for _, ordered := range []bool{false, true} {
			t.Run(mode.String(), func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
				box := boxIn(t, pool, pgoutbox.Config{Ordered: ordered})
				write(t, box, pool, awkward()...)
				write(t, box, pool, awkward()...)
				rows := lease(t, box, "t", time.Minute)
				checkAwkward(t, rows)
				settle(t, box, "t",
					outbox.Result{Number: rows[0].Number, State: outbox.Published},
					outbox.Result{Number: rows[1].Number, State: outbox.Dead, Error: "zero \x00 byte"},
					outbox.Result{Number: rows[2].Number, State: outbox.Unknown})
				write(t, box, pool, awkward()[1]) // revived
				if n, err := box.Replay(t.Context(), outbox.ReplayRequest{Before: time.Now().Add(time.Hour), IDs: []string{awkward()[0].ID}, Limit: 1}); n != 1 || err != nil {
					t.Errorf("Replay = %d, %v", n, err)
				}
				if n, err := box.Clean(t.Context(), 0, 10); n != 0 || err != nil {
					t.Errorf("Clean = %d, %v", n, err)
				}
				if n := len(lease(t, box, "t2", time.Minute)) + len(leaseKind(t, box, "t3", time.Minute, true)); n != 3 {
					t.Errorf("%d rows are due, want 3", n)
				}
				if err := box.Notify(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Modes that suit poolers get values as text, which databases may be told to write in other ways.
func TestOutbox_WorksWithAnyStyleOfText(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		for _, ordered := range []bool{false, true} {
			t.Run(mode.String(), func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, func(c *pgxpool.Config) {
					c.ConnConfig.DefaultQueryExecMode = mode
					c.ConnConfig.RuntimeParams["datestyle"] = "SQL, DMY"
					c.ConnConfig.RuntimeParams["bytea_output"] = "escape"
				})
				box := boxIn(t, pool, pgoutbox.Config{Ordered: ordered})
				write(t, box, pool, message("1"))
				rows := lease(t, box, "t", time.Minute)
				if len(rows) != 1 || rows[0].Age > time.Minute || string(rows[0].Message.Payload) != "payload of 1" {
					t.Fatalf("%+v, want the row that was written", rows)
				}
				settle(t, box, "t", outbox.Result{Number: rows[0].Number, State: outbox.Dead})
				if dead := dead(t, box); len(dead) != 1 || time.Since(dead[0].Ended) > time.Minute {
					t.Errorf("dead are %+v, want the row", dead)
				}
			})
		}
	}
}

func TestInSQL_WritesInATransactionOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		pool := newPool(t)
		box := boxIn(t, pool, pgoutbox.Config{Ordered: ordered})
		db := stdlib.OpenDBFromPool(pool)
		defer db.Close()
		inSQL := func(end func(*sql.Tx) error, messages ...producer.Message) error {
			t.Helper()
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			err = box.InSQL(tx).Publish(t.Context(), messages...)
			return errors.Join(err, end(tx))
		}
		if err := inSQL((*sql.Tx).Rollback, message("never")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := inSQL((*sql.Tx).Commit, awkward()...); err != nil {
				t.Fatal(err)
			}
		}
		rows := lease(t, box, "t", time.Minute)
		checkAwkward(t, rows)
		settle(t, box, "t", outbox.Result{Number: rows[0].Number, State: outbox.Dead})
		if err := inSQL((*sql.Tx).Commit, awkward()[0]); err != nil {
			t.Fatal(err)
		}
		if s := stats(t, box); s.Dead != 0 || s.Pending != 3 {
			t.Errorf("%+v, want the dead row revived", s)
		}
		other := awkward()[0]
		other.Payload = []byte("another amount")
		if _, ok := errors.AsType[*outbox.ConflictError](inSQL((*sql.Tx).Rollback, other)); !ok {
			t.Error("no conflict")
		}
	}
	box, _ := newBox(t)
	if err := box.InSQL(nil).Publish(t.Context(), message("1")); err == nil {
		t.Error("no transaction, no error")
	}
}

func TestPublish_JoinsTheTransactionOfTheInboxOfTheContext(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	store, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for handler, inbox := range map[string]dedupstore.Transactor{"pgx": store.Inbox(), "sql": store.InboxSQL()} {
		before := stats(t, box).Pending
		once, err := consumer.New(inbox, consumer.Config{Group: "billing", Policy: oncemill.Policy{
			Backoff: oncemill.Backoff{Min: time.Millisecond, Max: time.Millisecond},
		}})
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		deliver := func() consumer.Decision {
			return once.Process(t.Context(), consumer.Delivery{
				Handler: handler, Topic: "orders", Header: producer.Header{producer.HeaderID: "order-1"},
			}, func(ctx context.Context) error {
				runs++
				paid := producer.Message{ID: oncemill.FromContext(ctx).ID("paid"), Topic: "events"}
				if err := box.Publish(ctx, paid); err != nil {
					return err
				}
				if stats(t, box).Pending != before {
					t.Error("the row is there before the commit")
				}
				if runs < 3 {
					return errors.New("after it has published")
				}
				return nil
			})
		}
		if d := deliver(); d.Action == consumer.Ack || stats(t, box).Pending != before {
			t.Fatalf("decision %+v, %d rows after a run that failed, want %d", d, stats(t, box).Pending, before)
		}
		relaytest.Eventually(t, "a run that succeeds", func() bool { return deliver().Action == consumer.Ack })
		if n := stats(t, box).Pending; n != before+1 || runs != 3 {
			t.Errorf("%d rows after %d runs, want %d after 3", n, runs, before+1)
		}
		if err := once.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := box.Publish(t.Context(), message("1")); !errors.Is(err, pgoutbox.ErrNoTx) || !strings.Contains(err.Error(), "write with In(tx)") {
		t.Errorf("error %v, want ErrNoTx, which says what to do", err)
	}
}

func TestIn_RefusalsLeaveTheTransactionUsable(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	write(t, box, pool, message("conflicting"))
	tx := begin(t, pool)
	other := message("conflicting")
	other.Payload = []byte("x")
	twice := message("twice")
	twice.Payload = []byte("y")
	for name, messages := range map[string][]producer.Message{
		"zero byte in topic": {{ID: "1", Topic: "a\x00b"}},
		"zero byte in key":   {{ID: "1", Topic: "a", Key: "\x00"}},
		"with another row":   {message("good"), other},
		"within the call":    {message("twice"), twice},
	} {
		if err := box.In(tx).Publish(t.Context(), messages...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	named := producer.Message{Topic: "orders", Header: producer.Header{producer.HeaderID: "named by its header"}}
	renamed := named
	renamed.Payload = []byte("z")
	err := box.In(tx).Publish(t.Context(), named, renamed)
	if e, ok := errors.AsType[*outbox.ConflictError](err); !ok || e.ID != "named by its header" {
		t.Errorf("error %v, want a conflict that names the message", err)
	}
	publish(t, box, tx, message("after"), message("after"))
	commit(t, tx)
	if n := count(t, pool, "id = 'after'"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func TestIn_SameMessageInTwoTransactionsIsOneRow(t *testing.T) {
	t.Parallel()
	for _, first := range []func(testing.TB, pgx.Tx){commit, rollback} {
		box, pool := newBox(t)
		a, b := begin(t, pool), begin(t, pool)
		publish(t, box, a, message("1"))
		written := make(chan error)
		go func() { written <- box.In(b).Publish(context.Background(), message("1")) }()
		relaytest.Eventually(t, "the second writer waits for the first", func() bool {
			var n int
			pool.QueryRow(context.Background(), `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity USING (pid)
				WHERE l.locktype = 'transactionid' AND NOT l.granted AND query LIKE '%oncemill_outbox%'
				AND EXISTS (SELECT FROM pg_locks r WHERE r.pid = l.pid AND r.relation = 'oncemill_outbox'::regclass)`).Scan(&n)
			return n == 1
		})
		first(t, a)
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		commit(t, b)
		if n := count(t, pool, "true"); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
	}
}

func TestIn_RepetitionDoesNotHoldUpTheRelay(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	write(t, box, pool, message("1"))
	rows := lease(t, box, "t", time.Minute)
	publish(t, box, begin(t, pool), message("1")) // and stays open
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := box.Settle(ctx, "t", []outbox.Result{{Number: rows[0].Number, State: outbox.Removed}}); err != nil {
		t.Errorf("Settle while a repetition is open: %v", err)
	}
}

func TestIn_RowsOfATransactionKeepTheirOrder(t *testing.T) {
	t.Parallel()
	box, pool := orderedBox(t, pgoutbox.Config{})
	var messages []producer.Message
	for _, id := range numbered(500) {
		messages = append(messages, keyed("a", id))
	}
	write(t, box, pool, messages...)
	var got []string
	for len(got) < 500 {
		rows := lease(t, box, "t", time.Minute)
		if len(rows) == 0 {
			t.Fatalf("only %d rows", len(got))
		}
		var results []outbox.Result
		for _, r := range rows {
			got = append(got, r.Message.ID)
			results = append(results, outbox.Result{Number: r.Number, State: outbox.Published})
		}
		settle(t, box, "t", results...)
	}
	for i, id := range numbered(500) {
		if got[i] != id {
			t.Fatalf("row %d is %s, want %s", i, got[i], id)
		}
	}
}
