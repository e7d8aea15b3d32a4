// The refunds example gives agents a tool that refunds orders, and lets happen to it what happens to tools of language
// models: the model repeats its call in other words, two agents take up one ticket, a process dies between the payment
// and the answer, and the voucher service is closed at night, so that half of a refund remains. At the end it closes
// the books: each part of each order was paid back once.
//
//	go run ./examples/refunds
//
// It needs nothing but Go. What you would write yourself stands in tool.go. The bank of bank.go is somebody else's: it
// knows an idempotency key again, and nothing else keeps it from paying twice. Agents that die are processes of their
// own, killed by SIGKILL.
//
// Exit status: 0 if the books balance, 1 if they do not or something broke, 2 for wrong flags.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

func main() {
	if text, is := os.LookupEnv(childEnv); is {
		os.Exit(child(context.Background(), text))
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr, "", nil))
}

// run returns the exit status. Tests name a mistake to make in the tool, and get the books.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, mistake string, closed func(Books)) int {
	flags := flag.NewFlagSet("refunds", flag.ContinueOnError)
	tickets := flags.Int("tickets", 24, "how many tickets to work on, 4 to 10000")
	return shop.Main(ctx, flags, args, stderr, func(ctx context.Context, dir string) (bool, error) {
		if err := shop.CheckRange("tickets", *tickets, 4, 10_000); err != nil {
			return false, err
		}
		b, err := work(ctx, dir, *tickets, mistake)
		if err != nil {
			return false, err
		}
		if closed != nil {
			closed(b)
		}
		_, err = fmt.Fprint(stdout, b)
		return b.Balance(), err
	})
}

// A ticket is a customer who wants an order refunded.
type ticket struct {
	ID    string
	Order string
	Parts []payment
	Kind  int
}

// What happens to a ticket, in turn.
const (
	asksAgain = iota // the model repeats its call
	twoAgents        // at the same time
	dies             // after the first payment
	atNight          // the voucher service is closed
	kinds
)

func plan(tickets int) []ticket {
	all := make([]ticket, tickets)
	for i := range all {
		t := ticket{ID: fmt.Sprintf("ticket-%d", i+1), Order: fmt.Sprintf("A-%d", i+1), Kind: i % kinds}
		t.Parts = []payment{{card, 1000 + i}}
		if t.Kind == atNight {
			t.Parts = append(t.Parts, payment{voucher, 500 + i})
		}
		all[i] = t
	}
	return all
}

func orders(tickets []ticket) map[string][]payment {
	all := map[string][]payment{}
	for _, t := range tickets {
		all[t.Order] = t.Parts
	}
	return all
}

// reasons are how a model says the same thing.
var reasons = []string{"arrived broken", "the customer reports that it arrived broken", "Broken on arrival."}

// call is the try'th time that a model of an agent calls the tool for a ticket: it says the same in other words and
// another order of members.
func (t ticket) call(try int) toolCall {
	reason, _ := json.Marshal(reasons[try%len(reasons)]) // a string
	args := fmt.Sprintf(`{"order":%q,"cents":%d,"reason":%s}`, t.Order, total(t.Parts), reason)
	if try%2 == 1 {
		args = fmt.Sprintf(`{ "reason": %s, "cents": %d, "order": %q }`, reason, total(t.Parts), t.Order)
	}
	return toolCall{Conversation: t.ID, Step: "resolve", Args: json.RawMessage(args)}
}

// work lets agents work on tickets, and closes the books.
func work(ctx context.Context, dir string, tickets int, mistake string) (_ Books, err error) {
	planned := plan(tickets)
	tool, closeTool, err := openTool(ctx, dir, mistake, orders(planned))
	if err != nil {
		return Books{}, err
	}
	defer func() { err = errors.Join(err, closeTool()) }()
	o := &office{dir: dir, tool: tool}
	each := func(agent func(context.Context, ticket) error) error {
		return shop.Each(ctx, tickets, 8, func(ctx context.Context, i int) error { return agent(ctx, planned[i]) })
	}
	if err := each(o.day); err != nil {
		return Books{}, err
	}
	tool.bank.open.Store(true)
	if err := each(o.morning); err != nil {
		return Books{}, err
	}
	return o.closeBooks(ctx, planned)
}
