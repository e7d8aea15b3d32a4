// The refunds example gives agents a tool that refunds orders, and lets happen to it what happens to tools of language
// models: the model repeats its call in other words, two agents take up one ticket, a process dies between the payment and
// the answer, and the voucher service is closed at night, so that half of a refund remains. At the end it closes the books:
// each part of each order was paid back once.
//
//	go run ./examples/refunds
//
// It needs nothing but Go. What you would write yourself stands in tool.go. The bank of bank.go is somebody else's: it
// knows an idempotency key again, and nothing else keeps it from paying twice. Agents that die are processes of their own,
// killed by SIGKILL.
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
	"os/signal"
	"syscall"
)

func main() {
	if text, is := os.LookupEnv(childEnv); is {
		os.Exit(child(context.Background(), text))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr, "")
	stop()
	os.Exit(status)
}

// run returns the exit status. Tests name a mistake to make in the tool; "": none.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, mistake string) int {
	flags := flag.NewFlagSet("refunds", flag.ContinueOnError)
	flags.SetOutput(stderr)
	tickets := flags.Int("tickets", 24, "how many tickets to work on, 4 to 10000")
	out := flags.String("out", "text", "print the books as text or json")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil: // it is said already
		return 2
	case flags.NArg() > 0:
		say(stderr, "refunds: %q is not a flag\n", flags.Arg(0))
		return 2
	case *tickets < 4 || *tickets > 10000:
		say(stderr, "refunds: -tickets is %d, want 4 to 10000\n", *tickets)
		return 2
	case *out != "text" && *out != "json":
		say(stderr, "refunds: -out is %q, want text or json\n", *out)
		return 2
	}
	books, err := work(ctx, *tickets, mistake)
	if err != nil {
		say(stderr, "refunds: %v\n", err)
		return 1
	}
	if *out == "json" {
		err = json.NewEncoder(stdout).Encode(books)
	} else {
		_, err = fmt.Fprint(stdout, books)
	}
	if err != nil || !books.Balance() {
		return 1
	}
	return 0
}

// say prints to people. That it cannot be printed stops nothing.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
