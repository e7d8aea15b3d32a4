package mysqloutbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/producer"
)

func isDeadlock(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && e.Number == 1213
}

// TestOutbox_SeveralRelaysPublishAllOnce: writers and relays work side by side, in the default isolation of the server.
func TestOutbox_SeveralRelaysPublishAllOnce(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprint("ordered ", ordered), func(t *testing.T) {
			t.Parallel()
			writers, each, keys := 8, full(500, 40), 5
			db := newDB(t)
			cfg := mysqloutbox.Config{Ordered: ordered}
			box := boxIn(t, db, cfg)
			var b relaytest.Broker
			var stops []func()
			for range 4 {
				relay := relaytest.Quick()
				relay.BatchSize = 7
				stops = append(stops, relaytest.Start(t, unmigrated(t, db, cfg), &b, relay))
			}
			var group sync.WaitGroup
			for w := range writers {
				group.Go(func() {
					for i := range each {
						key := fmt.Sprint("key-", i%keys)
						if err := write(t.Context(), box, db, message(key, fmt.Sprintf("%d-%04d", w, i)),
							message("", fmt.Sprintf("free-%d-%04d", w, i))); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			relaytest.Eventually(t, "all published", func() bool { return len(b.Messages()) >= 2*writers*each })
			for _, stop := range stops {
				stop()
			}
			copies, last := map[string]int{}, map[string]string{}
			for _, m := range b.Messages() {
				copies[m.ID]++
				writer, _, keyed := strings.Cut(m.ID, "-")
				if !ordered || !keyed || writer == "free" {
					continue
				}
				of := writer + " " + m.Key
				if m.ID < last[of] {
					t.Errorf("%s was published after %s", m.ID, last[of])
				}
				last[of] = m.ID
			}
			for id, n := range copies {
				if n != 1 {
					t.Errorf("%s was published %d times", id, n)
				}
			}
			if s, err := box.Stats(t.Context()); err != nil || s.Pending != 0 {
				t.Errorf("%+v, %v; want nothing pending", s, err)
			}
		})
	}
}

// TestOutbox_OrderIsThatOfCommits: of two transactions that write a key, the later waits for the earlier one.
func TestOutbox_OrderIsThatOfCommits(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	box := boxIn(t, db, mysqloutbox.Config{Ordered: true})
	first, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback()
	if err := box.InSQL(first).Publish(t.Context(), message("k", "1")); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- write(t.Context(), box, db, message("k", "2")) }()
	if err := write(t.Context(), box, db, message("another", "3"), message("", "4")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-written:
		t.Fatalf("the second transaction did not wait for the first: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := errors.Join(first.Commit(), <-written); err != nil {
		t.Fatal(err)
	}
	rows, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: "t", Limit: 10, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range rows {
		if r.OrderKey == "k" {
			ids = append(ids, r.Message.ID)
		}
	}
	if fmt.Sprint(ids) != "[1 2]" {
		t.Errorf("the key's rows are %v", ids)
	}
}

// TestOutbox_LockedRowsHoldUpNobody: relays pass over rows that somebody has locked.
func TestOutbox_LockedRowsHoldUpNobody(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	box := boxIn(t, db, mysqloutbox.Config{})
	if err := write(t.Context(), box, db, message("", "1"), message("", "2"), message("", "3")); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(t.Context(), "SELECT number FROM oncemill_outbox WHERE id = '2' FOR "+
		"UPDATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	lease := outbox.LeaseRequest{Token: "t", Limit: 10, Lease: time.Minute}
	if rows, err := box.Lease(ctx, lease); err != nil {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// TestOutbox_JoinsTheInbox: a handler's rows commit with its outcome, or not at all.
func TestOutbox_JoinsTheInbox(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	box := boxIn(t, db, mysqloutbox.Config{})
	store, err := mysqlstore.New(db, mysqlstore.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := box.Publish(t.Context(), message("", "0")); !errors.Is(err, mysqloutbox.ErrNoTx) {
		t.Errorf("outside of a run Publish returned %v", err)
	}
	boom := errors.New("card refused")
	for id, end := range map[string]error{"committed": nil, "rolled back": boom} {
		a, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id},
			Owner: producer.NewID(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		err = dedupstore.InTxOne(t.Context(), store.Inbox(), a.Claim,
			func(ctx context.Context) (dedupstore.Settlement, error) {
				if err := box.Publish(ctx, message("", id)); err != nil {
					t.Error(err)
				}
				return dedupstore.Finish{
					Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour,
				}, end
			})
		if !errors.Is(err, end) {
			t.Error(err)
		}
	}
	page, err := box.List(t.Context(), outbox.Filter{}, "")
	if err != nil || len(page.Rows) != 1 || page.Rows[0].ID != "committed" {
		t.Errorf("%+v, %v", page.Rows, err)
	}
}

func TestOutbox_BadSetups(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := newDB(t)
	box := unmigrated(t, db, mysqloutbox.Config{})
	wantSetup(t, write(ctx, box, db, message("", "1")))
	_, err := box.Stats(ctx)
	wantSetup(t, err)
	_, err = box.Lease(ctx, outbox.LeaseRequest{Token: "t", Limit: 1, Lease: time.Minute})
	wantSetup(t, err)
	if plan, err := box.Plan(ctx); err != nil || plan.Found != 0 || plan.SQL == "" {
		t.Errorf("plan %+v, %v", plan, err)
	}
	for range 2 {
		if err := box.Migrate(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if plan, err := box.Plan(ctx); err != nil || plan.Found != plan.Wanted || plan.SQL != "" {
		t.Errorf("plan %+v, %v", plan, err)
	}
	ordered := unmigrated(t, db, mysqloutbox.Config{Ordered: true})
	wantSetup(t, ordered.Migrate(ctx))
	wantSetup(t, write(ctx, ordered, db, message("", "1")))
	if found, err := mysqloutbox.Find(ctx, db, mysqloutbox.Config{Ordered: true}); err != nil || write(ctx, found, db,
		message("", "1")) != nil {
		t.Errorf("what Find found cannot be written to: %v", err)
	}
	for _, version := range []int{0, 1, 3} {
		mustExec(t, db, fmt.Sprintf("UPDATE oncemill_outbox_settings SET version = %d", version))
		wantSetup(t, write(ctx, unmigrated(t, db, mysqloutbox.Config{}), db, message("", "1")))
	}
	mustExec(t, db, "CREATE TABLE business (n INT)")
	wantSetup(t, unmigrated(t, db, mysqloutbox.Config{Table: "business"}).Migrate(ctx))
}

func TestNew_RefusesBadConfigs(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	for field, cfg := range map[string]mysqloutbox.Config{
		"Config.Table":    {Table: "a`b"},
		"Config.SkipDead": {SkipDead: true},
	} {
		_, err := mysqloutbox.New(db, cfg)
		if invalid, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestPublish_MessagesWithoutRoom: what the server would not take is refused before anything is written.
func TestPublish_MessagesWithoutRoom(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	box := boxIn(t, db, mysqloutbox.Config{})
	var packet int
	if err := db.QueryRowContext(t.Context(), "SELECT @@max_allowed_packet").Scan(&packet); err != nil {
		t.Fatal(err)
	}
	large := message("", "large")
	large.Payload = make([]byte, packet)
	invalid := new(dedupstore.InvalidError)
	if err := write(t.Context(), box, db, message("", "small"), large); !errors.As(err, &invalid) {
		t.Errorf("the error is %v, want an InvalidError", err)
	}
	large.Payload = large.Payload[:packet-16384]
	many := []producer.Message{large}
	for i := range 100 {
		m := message("", fmt.Sprint(i))
		m.Payload = make([]byte, 10_000)
		many = append(many, m)
	}
	for range 2 {
		if err := write(t.Context(), box, db, many...); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := box.Stats(t.Context()); err != nil || s.Pending != 101 {
		t.Errorf("%+v, %v; want 101 pending", s, err)
	}
}

// TestOutbox_FitsIntoSmallPackets: a server takes 1 MiB at a time.
func TestOutbox_FitsIntoSmallPackets(t *testing.T) {
	t.Parallel()
	db := mysqltest.Start(t, "--max-allowed-packet=1048576").NewDatabase(t).Open(t)
	box := boxIn(t, db, mysqloutbox.Config{})
	withHeader := func(id string, bytes int) producer.Message {
		m := message("", id)
		m.Header = producer.Header{"large": strings.Repeat("x", bytes)}
		return m
	}
	var many []producer.Message
	for i := range 20 { // their headers take twice as many bytes in a statement
		many = append(many, withHeader(fmt.Sprint("header ", i), 120_000), withHeader(fmt.Sprint("larger ", i), 450_000))
	}
	for i := range 1500 {
		many = append(many, message("", fmt.Sprint("small ", i)))
	}
	for range 2 {
		mustWrite(t, box, db, many...)
	}
	err := write(t.Context(), box, db, message("", "first"), withHeader("second", 600_000))
	if invalid, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || invalid.Field != "Message.Payload" ||
		!strings.Contains(err.Error(), `messages[1], "second"`) || !strings.Contains(err.Error(), "max_allowed_packet") {
		t.Errorf("the error is %v, want an InvalidError that names the message and the setting", err)
	}
	rows, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: "t", Limit: 2000, Lease: time.Minute})
	if err != nil || len(rows) != len(many) {
		t.Fatal(len(rows), err)
	}
	var results []outbox.Result
	for _, r := range rows {
		results = append(results, outbox.Result{Number: r.Number, State: outbox.Dead, Error: strings.Repeat("x", 1024)})
	}
	if err := box.Settle(t.Context(), "t", results); err != nil {
		t.Error(err)
	}
}

// TestOutbox_RefusesTablesWithoutTransactions, as a server makes them that has another default engine.
func TestOutbox_RefusesTablesWithoutTransactions(t *testing.T) {
	t.Parallel()
	for table, engines := range map[string][2]string{"messages": {"MyISAM", "InnoDB"}, "settings": {"InnoDB", "Aria"}} {
		db := newDB(t)
		box := unmigrated(t, db, mysqloutbox.Config{})
		for i, statement := range strings.SplitAfter(strings.ReplaceAll(box.SQL(), "ROW_FORMAT=DYNAMIC", ""), ";\n")[:3] {
			if i < 2 {
				statement = strings.ReplaceAll(statement, "ENGINE=InnoDB", "ENGINE="+engines[i])
			}
			mustExec(t, db, statement)
		}
		for what, err := range map[string]error{
			"Publish": write(t.Context(), box, db, message("", "1")), "Migrate": box.Migrate(t.Context()),
		} {
			wantSetup(t, err)
			if !strings.Contains(fmt.Sprint(err), "ENGINE=InnoDB") {
				t.Errorf("%s: %s: the error is %v, want one that says what to do", table, what, err)
			}
		}
	}
}

// TestOrdered_SkipDead: a dead row lets those behind it pass.
func TestOrdered_SkipDead(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	box := boxIn(t, db, mysqloutbox.Config{Ordered: true, SkipDead: true})
	if err := write(t.Context(), box, db, message("k", "1"), message("k", "2")); err != nil {
		t.Fatal(err)
	}
	lease := outbox.LeaseRequest{Token: "first", Limit: 1, Lease: time.Minute}
	rows, err := box.Lease(t.Context(), lease)
	if err != nil || len(rows) != 1 {
		t.Fatal(len(rows), err)
	}
	refused := outbox.Result{Number: rows[0].Number, State: outbox.Dead}
	if err := box.Settle(t.Context(), "first", []outbox.Result{refused}); err != nil {
		t.Fatal(err)
	}
	lease.Token = "second"
	if rows, err = box.Lease(t.Context(), lease); err != nil || len(rows) != 1 || rows[0].Message.ID != "2" {
		t.Errorf("%+v, %v", rows, err)
	}
}
