package outbox_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/producer"
)

// cost finds the lines of the page's table.
var cost = regexp.MustCompile(`(?m)^\| ([^|]+) \| (\d+) \| `)

// docs/mysql.md says how many round trips each operation makes. Here they are counted on the wire.
func TestMySQL_RoundTripsAreThoseOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/mysql.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## What a message costs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	said := map[string]string{}
	for _, line := range cost.FindAllStringSubmatch(section, -1) {
		said[line[1]] = line[2]
	}
	made := roundTrips(t)
	if len(said) != len(made) {
		t.Errorf("the page has %d operations, the test %d", len(said), len(made))
	}
	for operation, n := range made {
		if said[operation] != strconv.FormatInt(n, 10) {
			t.Errorf("%s makes %d round trips; the page says %q", operation, n, said[operation])
		}
	}
}

// roundTrips makes each operation of the page once, by itself, on connections that are open.
func roundTrips(t *testing.T) map[string]int64 {
	var commands atomic.Int64
	db := mysqltest.Shared(t).NewDatabase(t).Open(t, func(c *mysql.Config) {
		c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			to, err := new(net.Dialer).DialContext(ctx, network, address)
			return counted{to, &commands}, err
		}
	})
	db.SetMaxIdleConns(8)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := db.ExecContext(ctx, "CREATE TABLE effects (name VARCHAR(200))")
	must(err)
	store, err := mysqlstore.New(db, mysqlstore.Config{})
	must(err)
	box, err := mysqloutbox.New(db, mysqloutbox.Config{})
	must(err)
	must(store.Migrate(ctx))
	must(box.Migrate(ctx))

	ids := 0
	claim := func() dedupstore.Request {
		ids++
		return dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: fmt.Sprint(ids)},
			Owner: rand.Text(), Lease: time.Hour, Retention: time.Hour, MaxAttempts: 5,
		}
	}
	ask := func(r dedupstore.Request, want dedupstore.Status) dedupstore.Claim {
		t.Helper()
		answer, err := dedupstore.ClaimOne(ctx, store, r)
		if must(err); answer.Status != want {
			t.Fatalf("the claim is answered %v, want %v", answer.Status, want)
		}
		return answer.Claim
	}
	success := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour}
	inTx := func(c dedupstore.Claim, handle func(context.Context) error) {
		t.Helper()
		must(dedupstore.InTxOne(ctx, store.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			return success, handle(ctx)
		}))
	}
	execute := func(query string, args ...any) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := mysqlstore.Tx(ctx).ExecContext(ctx, query, args...)
			return err
		}
	}
	publish := func(ctx context.Context) error {
		ids++
		return box.Publish(ctx,
			producer.Message{ID: fmt.Sprint("a-", ids), Topic: "orders", Payload: []byte("{}")},
			producer.Message{ID: fmt.Sprint("b-", ids), Topic: "orders", Payload: []byte("{}")})
	}
	nothing := func(context.Context) error { return nil }
	lease := func() []outbox.Row {
		rows, err := box.Lease(ctx, outbox.LeaseRequest{Token: fmt.Sprint("token-", ids), Lease: time.Hour, Limit: 100})
		must(err)
		return rows
	}

	inTx(ask(claim(), dedupstore.AcquiredRun), publish) // connections are open, and the tables looked at
	lease()
	count := func(do func()) int64 {
		before := commands.Load()
		do()
		return commands.Load() - before
	}
	made := map[string]int64{}
	r := claim()
	var c dedupstore.Claim
	made["first claim"] = count(func() { c = ask(r, dedupstore.AcquiredRun) })
	made["heartbeat"] = count(func() {
		must(dedupstore.ExtendOne(ctx, store, dedupstore.Extension{Claim: c, Lease: time.Hour}))
	})
	made["finish of a leased claim"] = count(func() { must(dedupstore.SettleOne(ctx, store, c, success)) })
	r.Owner = rand.Text()
	made["duplicate"] = count(func() { ask(r, dedupstore.Done) })

	c = ask(claim(), dedupstore.AcquiredRun)
	run := count(func() { inTx(c, nothing) })
	made["run in an inbox"] = run
	first := claim()
	made["first run in an inbox, without a claim"] = count(func() {
		answers, err := store.Inbox().InTx(ctx, []dedupstore.TxRun{{First: &first}},
			func(context.Context, []dedupstore.Claim) ([]dedupstore.Settlement, error) {
				return []dedupstore.Settlement{success}, nil
			})
		if must(err); answers != nil {
			t.Fatalf("a first run is answered %+v", answers)
		}
	})
	for what, handle := range map[string]func(context.Context) error{
		"statement of a handler":                 execute("INSERT INTO effects VALUES ('paid')"),
		"statement of a handler, with arguments": execute("INSERT INTO effects VALUES (?)", "paid"),
		"outbox rows of one Publish":             publish,
	} {
		c = ask(claim(), dedupstore.AcquiredRun)
		made[what] = count(func() { inTx(c, handle) }) - run
	}

	var rows []outbox.Row
	made["batch that a relay leases"] = count(func() { rows = lease() })
	var results []outbox.Result
	for _, row := range rows {
		results = append(results, outbox.Result{Number: row.Number, State: outbox.Published})
	}
	if len(rows) != 2 {
		t.Fatalf("%d rows are leased, want 2", len(rows))
	}
	made["batch that it has published"] = count(func() { must(box.Settle(ctx, fmt.Sprint("token-", ids), results)) })
	made["look of a relay that finds nothing"] = count(func() { lease() })
	return made
}

// A counted connection counts the commands that the client sends and the server answers.
type counted struct {
	net.Conn
	commands *atomic.Int64
}

// comStmtClose is the command that has no answer. It follows the packet's length and number.
const comStmtClose = 0x19

// Write implements [net.Conn]. The driver sends a packet by one call.
func (c counted) Write(b []byte) (int, error) {
	if len(b) > 4 && b[3] == 0 && b[4] != comStmtClose {
		c.commands.Add(1)
	}
	return c.Conn.Write(b)
}
