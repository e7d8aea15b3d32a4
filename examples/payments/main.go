// The payments example takes payments by HTTP, books each of them in a ledger, and tells another company's API about it:
// each step exactly as often as it should happen, whatever crashes.
//
//		client ─POST─► service ─outbox─► relay ─► JetStream ─► charge ─outbox─► relay ─► JetStream ─► notify ─POST─► api
//
//	  - service writes the payment and its event in one transaction. The ID is the client's: whoever repeats the request
//	    means the same payment.
//	  - relay publishes what is in the outbox, perhaps more than once.
//	  - charge writes the ledger. Its handler runs in a transaction of the inbox, which commits the entries, the balances, the
//	    receipt's row in the outbox and the outcome together: there is no second booking, whatever crashes.
//	  - notify calls an API, which no transaction can take back. Its claim is a lease, in Redis or in the same database; a crash
//	    between the call and its outcome makes a second call, and that has the same idempotency key, the ID of the run.
//	  - api is a stub of that API, which honours idempotency keys.
//
// Each part is a process. The example starts them, sends payments and duplicates of every kind (clients that ask again,
// acknowledgements that relays and consumers lose, messages that somebody publishes again), kills consumers with SIGKILL, and
// closes the books at the end.
//
//	go run ./examples/payments -embedded
//
// needs nothing but Go: everything is in one SQLite file, and NATS runs in the first process. File, streams and the API's
// journal lie in a folder oncemill-payments-… in the temporary folder (TMPDIR), which is removed at the end, also after the
// first SIGINT or SIGTERM; a second one, or SIGKILL, leaves it there. Without -embedded the example uses the servers of
// compose.yaml, and any part may be run by itself, as often as you like (charge and notify share their work):
//
//	docker compose up -d --wait
//	go run ./examples/payments
//	go run ./examples/payments -role service,relay -listen 127.0.0.1:8080
//	go run ./examples/payments -role charge
//	go run ./examples/payments -role api -listen 127.0.0.1:8081
//	go run ./examples/payments -role notify -api http://127.0.0.1:8081
//	curl -d '{"id":"4711","account":"ann","merchant":"bakery","cents":1200}' http://127.0.0.1:8080/payments
//
// What you would write yourself stands in service.go, charge.go, notify.go, relay.go and postgres.go (sqlite.go). Exit
// status: 0 if the books balance, 1 if they do not or something broke, 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"
)

func main() { os.Exit(program{}.main(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// A program is the example.
type program struct {
	tamper func(database) database // breaks something, for tests of the books; nil: nothing
}

// main returns the exit status. The end of ctx, SIGINT and SIGTERM begin the drain.
func (p program) main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		say(stderr, "payments: %v\n", err)
		return 2
	}
	if !o.verbose {
		silence()
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	balanced := true
	if o.roles == nil {
		balanced, err = conduct(ctx, o, stdout, &shared{w: stderr})
	} else {
		err = p.work(ctx, o, stdout)
	}
	switch {
	case err != nil && o.roles == nil && ctx.Err() != nil:
		say(stderr, "payments: interrupted: the books were not closed: %v\n", err)
	case err != nil:
		say(stderr, "payments: %v\n", err)
	}
	if err != nil || !balanced {
		return 1
	}
	return 0
}

// say prints to people. That it cannot be printed stops nothing.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// silence keeps libraries from logging, once: go-redis does not expect it while it works.
var silence = sync.OnceFunc(func() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	redis.SetLogger(silent{})
})

// silent is a logger of go-redis.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
