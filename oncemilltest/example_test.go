package oncemilltest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/oncemilltest"
)

// A bank is a fake, which recognises idempotency keys if it is told to.
type bank struct {
	mu         sync.Mutex
	recognises bool
	keys       map[string]bool
	charges    int
}

func (b *bank) charge(_ context.Context, key string, cents int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cents <= 0 {
		return oncemill.Permanent(errors.New("nothing to charge"))
	}
	if b.keys == nil {
		b.keys = map[string]bool{}
	}
	if !b.recognises || !b.keys[key] {
		b.charges++
	}
	b.keys[key] = true
	return nil
}

// An order is what the handlers of these examples get. Yours gets a jetstream.Msg, a *kgo.Record or a message.Message.
type order struct{ cents int }

// handler is the handler under test.
func handler(ctx context.Context, b *bank, o order) error {
	return b.charge(ctx, oncemill.FromContext(ctx).ID("charge"), o.cents)
}

func Example() {
	var bank bank
	charge := oncemilltest.Case{Handler: func(ctx context.Context) error { return handler(ctx, &bank, order{4200}) }}

	runs, err := charge.Twice(context.Background())
	fmt.Println("runs:", runs, "charges:", bank.charges, "error:", err)
	// Output:
	// runs: 1 charges: 1 error: <nil>
}

// A failure that is final is stored too: the copy gets it, and the handler does not run again.
func ExampleCase_Twice() {
	var bank bank
	charge := oncemilltest.Case{Handler: func(ctx context.Context) error { return handler(ctx, &bank, order{0}) }}

	runs, err := charge.Twice(context.Background())
	failed, is := errors.AsType[*oncemill.Error](err)
	fmt.Println("runs:", runs, "charges:", bank.charges)
	fmt.Println("error:", err, "duplicate:", is && failed.Duplicate)
	// Output:
	// runs: 1 charges: 0
	// error: oncemill: failed: nothing to charge duplicate: true
}

func ExampleCase_Together() {
	var bank bank
	charge := oncemilltest.Case{Handler: func(ctx context.Context) error { return handler(ctx, &bank, order{4200}) }}

	runs, err := charge.Together(context.Background())
	fmt.Println("runs:", runs, "charges:", bank.charges, "error:", err)
	// Output:
	// runs: 1 charges: 1 error: <nil>
}

// Under a leased claim a crash repeats the effect, unless the bank recognises the key that Run.ID makes.
func ExampleCase_CrashAfterEffect() {
	for _, recognises := range []bool{false, true} {
		bank := bank{recognises: recognises}
		charge := func(ctx context.Context) error { return handler(ctx, &bank, order{4200}) }

		runs, err := oncemilltest.Case{Handler: charge}.CrashAfterEffect(context.Background())
		fmt.Println("runs:", runs, "charges:", bank.charges, "error:", err)
	}
	// Output:
	// runs: 2 charges: 2 error: <nil>
	// runs: 2 charges: 1 error: <nil>
}

// An inbox rolls back what the first run wrote. In your test it is Store.Inbox() of pgstore or sqlitestore, and the
// handler writes in pgstore.Tx(ctx) or sqlitestore.Tx(ctx).
func ExampleCase_CrashAfterEffect_inbox() {
	records, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	inbox := storetest.NewMemoryInbox(records)
	book := oncemilltest.Case{
		Store:   inbox,
		Handler: func(ctx context.Context) error { return inbox.Write(ctx, "booking") },
	}

	runs, err := book.CrashAfterEffect(context.Background())
	fmt.Println("runs:", runs, "rows:", inbox.All(), "error:", err)
	// Output:
	// runs: 2 rows: map[booking:1] error: <nil>
}

// An effect that must never happen twice ends as unknown instead.
func ExampleCase_CrashAfterEffect_irreversible() {
	var bank bank
	charge := oncemilltest.Case{
		Policy:  oncemill.Irreversible(),
		Handler: func(ctx context.Context) error { return handler(ctx, &bank, order{4200}) },
	}

	runs, err := charge.CrashAfterEffect(context.Background())
	fmt.Println("runs:", runs, "charges:", bank.charges)
	fmt.Println("error:", err)
	// Output:
	// runs: 1 charges: 1
	// error: oncemill: ended with unknown outcome: the lease of a started run expired
}

func ExampleCase_FailThenSucceed() {
	bank := bank{recognises: true}
	charge := oncemilltest.Case{Handler: func(ctx context.Context) error { return handler(ctx, &bank, order{4200}) }}

	runs, err := charge.FailThenSucceed(context.Background())
	fmt.Println("runs:", runs, "charges:", bank.charges, "error:", err)
	// Output:
	// runs: 2 charges: 1 error: <nil>
}

// A handler gets the transaction of an inbox, which is rolled back when it returns an error.
func ExampleCase_Once() {
	records, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	inbox := storetest.NewMemoryInbox(records) // in your test: Store.Inbox() of pgstore or sqlitestore
	for _, closed := range []bool{false, true} {
		err := oncemilltest.Case{Store: inbox, Handler: func(ctx context.Context) error {
			if err := inbox.Write(ctx, "booking"); err != nil {
				return err
			}
			if closed {
				return oncemill.Permanent(errors.New("the account is closed"))
			}
			return nil
		}}.Once(context.Background())
		fmt.Println("rows:", inbox.All(), "error:", err)
	}
	// Output:
	// rows: map[booking:1] error: <nil>
	// rows: map[booking:1] error: oncemill: failed: the account is closed
}

// A handler that only asks for its run needs neither store nor guard.
func ExampleContext() {
	ctx := oncemilltest.Context(context.Background(), oncemill.Run{Attempt: 3})
	run := oncemill.FromContext(ctx)
	fmt.Println("attempt:", run.Attempt, "idempotency key:", run.ID("charge"))

	var bank bank
	fmt.Println("error:", handler(ctx, &bank, order{4200}), "charges:", bank.charges)
	// Output:
	// attempt: 3 idempotency key: ca29c776-1776-82c6-8905-54af8b61bcf3
	// error: <nil> charges: 1
}

// An HTTP handler is called by a closure, which makes its answer an error.
func Example_http() {
	bank := bank{recognises: true}
	refund := func(w http.ResponseWriter, r *http.Request) {
		if err := handler(r.Context(), &bank, order{4200}); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}
	post := oncemilltest.Case{Handler: func(ctx context.Context) error {
		answer := httptest.NewRecorder()
		refund(answer, httptest.NewRequestWithContext(ctx, http.MethodPost, "/refunds", strings.NewReader(`{}`)))
		if answer.Code >= http.StatusInternalServerError {
			return errors.New(answer.Body.String())
		}
		return nil
	}}

	runs, err := post.CrashAfterEffect(context.Background())
	fmt.Println("runs:", runs, "charges:", bank.charges, "error:", err)
	// Output:
	// runs: 2 charges: 1 error: <nil>
}
