// The webhook example receives webhooks of GitHub, of Stripe, and of a sender that follows Standard Webhooks. Each is proven,
// claimed and written to an outbox in one SQLite transaction, and answered; a relay in the same process publishes the
// messages, here to the log.
//
//	go run ./examples/webhook
//
// README.md has curl lines that play the senders: with a redelivery, a retry that is signed anew, and a forgery. The service
// runs until it is interrupted.
//
// Events are forgotten with the temporary database, unless -db names a file. Then GITHUB_SECRET, STRIPE_SECRET and
// STANDARD_SECRET have to be set; else those that are not are what README.md says.
//
// What you would write yourself stands in hooks.go. Exit status: 0 after an interrupt, 1 if something broke, 2 for wrong
// flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	status := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr, func(net.Addr) {})
	stop()
	os.Exit(status)
}

// run returns the exit status. The end of ctx begins the drain. It says where it listens as soon as it does.
func run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer, listens func(net.Addr)) int {
	flags := flag.NewFlagSet("webhook", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:8731", "take webhooks at this `address`")
	path := flags.String("db", "", "keep outbox and claims in this SQLite `file` (default: a temporary one)")
	lease := flags.Duration("lease", 5*time.Second, "how long senders wait for a request that died with its process")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("%q is not a flag", flags.Arg(0))
		say(stderr, "webhook: %v\n", err)
		return 2
	case err != nil:
		return 2
	}
	keys, err := secretsOf(env, *path == "")
	if err != nil {
		say(stderr, "webhook: %v\n", err)
		return 2
	}
	if *path == "" {
		dir, err := os.MkdirTemp("", "oncemill-webhook-")
		if err != nil {
			say(stderr, "webhook: %v\n", err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		*path = filepath.Join(dir, "hooks.db")
	}
	if err := service(ctx, *listen, *path, *lease, keys, stdout, listens); err != nil {
		say(stderr, "webhook: %v\n", err)
		return 1
	}
	return 0
}

// service takes webhooks until ctx ends.
func service(ctx context.Context, address, path string, lease time.Duration, s secrets, stdout io.Writer, listens func(net.Addr)) (err error) {
	sent := &published{out: stdout}
	h, err := open(ctx, path, lease, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.db.Close()) }()
	var cleaning sync.WaitGroup
	cleaned, stop := context.WithCancel(ctx)
	defer cleaning.Wait()
	defer stop()
	cleaning.Go(func() { _ = h.store.RunCleaning(cleaned) }) // without it every event is kept for ever
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen at -listen %s: %w", address, err)
	}
	say(stdout, "taking webhooks at http://%s/hooks/github, …/stripe and …/standard\n", l.Addr())
	listens(l.Addr())
	return serve(ctx, l, h.routes(sent), h.relay(sent))
}

// say prints to people. That it cannot be printed stops nothing.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
