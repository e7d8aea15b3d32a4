package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// A toolCall is what a model's runtime hands to a tool.
type toolCall struct {
	Conversation string // what all agents on a ticket have in common
	Step         string // of the conversation's plan
	Args         json.RawMessage
}

// arguments are what the model writes.
type arguments struct {
	Order  string `json:"order"`
	Cents  int    `json:"cents"`
	Reason string `json:"reason"`
}

// An answer is what the model gets.
type answer struct {
	Says  string
	Again time.Duration // ask again after this time; zero: no need to
	Known bool          // what became of this call; false: perhaps it was not even begun
}

// A payment is a part of an order.
type payment struct {
	Part  string `json:"part"` // card or voucher: how it was paid
	Cents int    `json:"cents"`
}

// A receipt is the bank's.
type receipt struct {
	payment
	Number int `json:"number"`
}

// partial is what a run of the tool ends in.
type partial = oncemill.Partial[[]receipt, payment]

// A tool refunds orders. It is safe for concurrent use, in any number of processes.
type tool struct {
	guard  *oncemill.Guard
	bank   *bank
	orders map[string][]payment
	paid   func() // is called after each payment, before anybody knows of it
	wrong  string // the mistake that a test makes
}

// How an order was paid.
const (
	card    = "card"
	voucher = "voucher"
)

// Mistakes that tests make, which show in the books.
const (
	reasonInKey = "reason in key" // what the model writes anew each time makes each call another one
	agentInKey  = "agent in key"  // each agent has a conversation of its own
	keyOfRun    = "key of run"    // the bank's key is another one in each run
)

// lease is how long the key of an agent that died stays busy. It is short so that the example is.
const lease = 4 * time.Second

// openTool opens the tool for a process. All processes share the files in dir.
func openTool(
	ctx context.Context, dir, wrong string, orders map[string][]payment,
) (_ *tool, closing func() error, err error) {
	b, err := openBank(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	// The payments are in another database than the claims, so this is the leased store and not the inbox.
	claims, err := shop.OpenSQLite(ctx, filepath.Join(dir, "claims.db"))
	if err != nil {
		return nil, nil, errors.Join(err, b.db.Close())
	}
	closing = func() error { return errors.Join(claims.Close(), b.db.Close()) }
	policy := oncemill.HighValue()
	policy.Lease, policy.Backoff.Min = lease, 100*time.Millisecond
	guard, err := oncemill.NewGuard(claims.Leased, policy)
	if err != nil {
		return nil, nil, errors.Join(err, closing())
	}
	return &tool{guard: guard, bank: b, orders: orders, paid: func() {}, wrong: wrong}, closing, nil
}

// refund is the tool. Whatever happens, the same call may be repeated until it says that all is done, within the dedup
// window: a week after the first payment it begins anew, and only the bank's memory of keys keeps it from paying again.
func (t *tool) refund(ctx context.Context, c toolCall) (answer, error) {
	var args arguments
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return answer{Says: "the arguments are not what they should be", Known: true}, nil //nolint:nilerr // it is told
	}
	todo, known := t.orders[args.Order]
	if !known || args.Cents != total(todo) {
		return answer{Says: "there is no such order with this amount", Known: true}, nil
	}
	call, err := t.call(c, args)
	if err != nil {
		return answer{}, err
	}
	first := oncemill.Run{Key: call.Key} // names the payments, also those that remain for later
	for {
		p, err := oncemill.Do(ctx, t.guard, call, func(ctx context.Context) (partial, error) {
			return t.pay(ctx, first, args.Order, todo)
		})
		if err != nil {
			return explain(err)
		}
		if p.Complete() {
			return answer{Says: fmt.Sprintf("order %s is refunded", args.Order), Known: true}, nil
		}
		call, todo = p.Rest(call), p.Remains
	}
}

// call names what is to be done once: by ticket, step, order and amount. The reason is not part of it.
func (t *tool) call(c toolCall, args arguments) (oncemill.Call, error) {
	identity := struct {
		Order  string `json:"order"`
		Cents  int    `json:"cents"`
		Reason string `json:"reason,omitempty"`
	}{Order: args.Order, Cents: args.Cents}
	if t.wrong == reasonInKey {
		identity.Reason = args.Reason
	}
	id, err := producer.CallID(c.Conversation, c.Step, "refund", identity)
	return oncemill.Call{Key: dedupstore.Key{Tenant: "shop", Group: "support", Handler: "refund", ID: id}}, err
}

// pay makes payments. One that is refused remains. If nobody can tell what became of one, the run fails, and the next
// run of the same call asks again with the same keys.
func (t *tool) pay(ctx context.Context, first oncemill.Run, order string, todo []payment) (partial, error) {
	var p partial
	for _, each := range todo {
		key := first.ID(each.Part)
		if t.wrong == keyOfRun {
			key = producer.NewID()
		}
		number, err := t.bank.pay(ctx, key, order, each)
		switch {
		case errors.Is(err, errClosed):
			p.Remains, p.Reason = append(p.Remains, each), err.Error()
		case err != nil:
			return partial{}, err
		default:
			t.paid()
			p.Done = append(p.Done, receipt{each, number})
		}
	}
	if len(p.Done) == 0 {
		// It uses up no attempt: a night is longer than Policy.MaxAttempts.
		return partial{}, oncemill.RetryAfter(closedPause, oncemill.Uncounted(oncemill.NoEffect(errClosed)))
	}
	return p, nil
}

// closedPause is how often the voucher service may be asked at night.
const closedPause = 100 * time.Millisecond

// explain makes of an error what a model can act on.
func explain(err error) (answer, error) {
	if busy, ok := errors.AsType[*oncemill.BusyError](err); ok {
		if busy.NotDue {
			return answer{Says: "not all is refunded, and it is too early to try again", Again: busy.Wait}, nil
		}
		return answer{Says: "another agent is at it", Again: busy.Wait}, nil
	}
	if retry, ok := errors.AsType[*oncemill.RetryError](err); ok {
		return answer{Says: "not all is refunded: " + retry.Err.Error(), Again: retry.Delay, Known: true}, nil
	}
	if failed, ok := errors.AsType[*oncemill.FailedError](err); ok {
		return answer{}, failed // a person has to look
	}
	// The store did not answer, before the run or after it. The same call finds out, or pays again with the same keys.
	return answer{Says: "not known yet: " + err.Error(), Again: time.Second}, nil
}

func total(parts []payment) int {
	sum := 0
	for _, p := range parts {
		sum += p.Cents
	}
	return sum
}
