// The outbox example is an HTTP service that takes orders. It writes each order and its event in one PostgreSQL
// transaction; a relay in the same process publishes the events to NATS JetStream or Kafka. Clients repeat requests and
// hang up, transactions are rolled back, acknowledgements of the broker get lost, the relay is stopped half way and
// another one takes over. At the end it closes the books: every committed order has its event, no other order has one.
//
//	go run ./examples/outbox -embedded
//	go run ./examples/outbox -embedded -broker kafka
//
// need nothing but Go, and therefore use SQLite instead of PostgreSQL; NATS runs in this process, and Kafka is played by
// kfake. Without -embedded the example uses the servers of compose.yaml:
//
//	docker compose up -d --wait
//	go run ./examples/outbox
//	go run ./examples/outbox -listen 127.0.0.1:8080    # only the service, until interrupted
//
// A run with books removes what it has made there. The service keeps it, for the next start: the schema oncemill_demo, and
// the stream OUTBOX-demo or the topic outbox.demo.orders.
//
// What you would write yourself stands in postgres.go (sqlite.go), handler.go, serve.go, and the publishers of nats.go and
// kafka.go. Exit status: 0 if the books balance, 1 if they do not or something broke, 2 for wrong flags.
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
	"syscall"
)

func main() { os.Exit(program{}.main(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// A program is the example.
type program struct {
	tamper func(*rig) // breaks something, for tests of the books; nil: nothing
}

// main returns the exit status. The end of ctx, SIGINT and SIGTERM begin the drain.
func (p program) main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		say(stderr, "outbox: %v\n", err)
		return 2
	}
	if !o.verbose {
		slog.SetDefault(slog.New(slog.DiscardHandler))
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	balanced, err := p.run(ctx, o, stdout, &shared{w: stderr})
	if err != nil {
		say(stderr, "outbox: %v\n", err)
	}
	if err != nil || !balanced {
		return 1
	}
	return 0
}

// say prints to people. That it cannot be printed stops nothing.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
