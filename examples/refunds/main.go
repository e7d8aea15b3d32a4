// The refunds example gives agents a tool that refunds orders. The model repeats its call in other words, two agents
// take one ticket at the same time, and a process is killed (SIGKILL) between the payment and the answer. At the end it
// closes the books: each order was paid back once.
//
//	go run ./examples/refunds
//
// It needs nothing but Go. Exit status: 0 if the books balance, 1 if they do not or something broke, 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

func main() {
	if order, is := os.LookupEnv(childEnv); is {
		shop.Say(os.Stderr, "%v\n", die(context.Background(), order))
		os.Exit(1)
	}
	flags := flag.NewFlagSet("refunds", flag.ContinueOnError)
	tickets := flags.Int("tickets", 24, "how many tickets to work on")
	play := func(ctx context.Context, dir string) (bool, error) {
		b, err := work(ctx, dir, *tickets, "")
		if err == nil {
			fmt.Printf("%+v\nEach order was paid back once: %v.\n", b, b.balance())
		}
		return b.balance(), err
	}
	os.Exit(shop.Main(context.Background(), flags, os.Args[1:], os.Stderr, play))
}

// A tool refunds orders. It is safe for concurrent use, in any number of processes that share its file.
type tool struct {
	guard *oncemill.Guard
	db    *shop.Database
	paid  func() // runs after each payment, before anybody knows of it
	wrong string // the mistake that a test makes
}

func openTool(ctx context.Context, dir, wrong string) (*tool, error) {
	db, err := shop.OpenSQLite(ctx, filepath.Join(dir, "refunds.db"), `CREATE TABLE IF NOT EXISTS payments (
		number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, refunded INTEGER NOT NULL, repeated INTEGER NOT NULL)`)
	if err != nil {
		return nil, err
	}
	policy := oncemill.HighValue()
	policy.Lease = 4 * time.Second // after a death the next agent waits so long; short so that the example is
	guard, err := oncemill.NewGuard(db.Leased, policy)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &tool{guard: guard, db: db, paid: func() {}, wrong: wrong}, nil
}

// A request is what a model calls the tool with.
type request struct {
	Order  int    `json:"order"`
	Reason string `json:"reason,omitempty"`
}

// refund is the tool. It returns the number of the bank's receipt, which is the same for all who ask. Ticket and order
// say which calls are the same one. The reason does not: a model writes it anew each time.
func (t *tool) refund(ctx context.Context, r request) (receipt int, err error) {
	same := request{Order: r.Order}
	switch t.wrong {
	case "no guard":
		return t.pay(ctx, producer.NewID(), r.Order)
	case "reason in key":
		same = r
	}
	id, err := producer.CallID(fmt.Sprint("ticket-", r.Order), "resolve", "refund", same)
	if err != nil {
		return 0, err
	}
	key := dedupstore.Key{Tenant: "shop", Group: "support", Handler: "refund", ID: id}
	call := oncemill.Call{Key: key, MaxWait: time.Minute} // for another agent that is at it, or died over it
	return oncemill.Do(ctx, t.guard, call, func(ctx context.Context) (int, error) {
		payment := oncemill.FromContext(ctx).ID("payment") // the same in each run, also after a crash
		if t.wrong == "key of run" {
			payment = producer.NewID()
		}
		return t.pay(ctx, payment, r.Order)
	})
}

// pay stands in for a bank, which recognises an idempotency key: nothing else keeps it from paying twice. A bank is no
// part of a transaction of yours, so the guard claims by lease.
func (t *tool) pay(ctx context.Context, key string, order int) (receipt int, err error) {
	if err := shop.Pause(ctx, 20*time.Millisecond); err != nil {
		return 0, err
	}
	err = t.db.SQL.QueryRowContext(ctx, `INSERT INTO payments (key, refunded, repeated) VALUES (?, ?, 0)
		ON CONFLICT (key) DO UPDATE SET repeated = repeated + 1 RETURNING number`, key, order).Scan(&receipt)
	t.paid()
	return receipt, err
}

// ask is an agent, which says the same in other words each try.
func (t *tool) ask(ctx context.Context, order, try int) error {
	reasons := []string{"arrived broken", "the customer reports that it arrived broken", "Broken on arrival."}
	_, err := t.refund(ctx, request{order, reasons[try]})
	return err
}

// books are what came of the tickets: how many payments the bank made, for how many orders, and how many it recognised.
type books struct{ Tickets, Deaths, Payments, Orders, Recognised int }

func (b books) balance() bool { return b.Payments == b.Tickets && b.Orders == b.Tickets }

// work lets agents work on the tickets, and closes the books. What happens to a ticket depends on its number.
func work(ctx context.Context, dir string, tickets int, wrong string) (b books, err error) {
	t, err := openTool(ctx, dir, wrong)
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, t.db.Close()) }()
	err = shop.Each(ctx, tickets, 8, func(ctx context.Context, i int) error {
		switch i % 3 {
		case 0: // two agents at the same time
			return shop.Each(ctx, 2, 2, func(ctx context.Context, try int) error { return t.ask(ctx, i, try) })
		case 1: // an agent that dies
			return sendToDeath(ctx, dir, i)
		}
		return t.ask(ctx, i, 0)
	})
	if err == nil { // later somebody looks at each ticket again
		err = shop.Each(ctx, tickets, 8, func(ctx context.Context, i int) error { return t.ask(ctx, i, 2) })
	}
	if err != nil {
		return b, err
	}
	b = books{Tickets: tickets, Deaths: (tickets + 1) / 3}
	return b, t.db.SQL.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT refunded), sum(repeated) FROM payments`).
		Scan(&b.Payments, &b.Orders, &b.Recognised)
}

// childEnv holds the order of an agent that is a process of its own.
const childEnv = "ONCEMILL_REFUNDS_ORDER"

// sendToDeath runs such an agent, with the tool's file in its working directory.
func sendToDeath(ctx context.Context, dir string, order int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), childEnv+"="+strconv.Itoa(order))
	said, err := cmd.CombinedOutput()
	if exit, is := errors.AsType[*exec.ExitError](err); !is || exit.Exited() { // by no signal
		return fmt.Errorf("an agent had to die: %w\n%s", err, said)
	}
	return nil
}

// die is such an agent: SIGKILL ends it between the payment and the answer. It returns only if something broke.
func die(ctx context.Context, text string) error {
	order, err1 := strconv.Atoi(text)
	t, err2 := openTool(ctx, ".", "")
	self, err3 := os.FindProcess(os.Getpid())
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	t.paid = func() {
		for self.Kill() == nil { // until the signal is there
		}
	}
	return errors.Join(errors.New("the agent survived"), t.ask(ctx, order, 0))
}
