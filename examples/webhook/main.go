// The webhook example receives webhooks of GitHub, of Stripe, and of a sender that follows Standard Webhooks. Each is
// proven, claimed and written to an outbox in one SQLite transaction, and answered; a relay in the same process
// publishes the messages, here to the log.
//
//	go run ./examples/webhook
//
// README.md has curl lines that play the senders: with a redelivery, a retry that is signed anew, and a forgery. The
// service runs until it is interrupted.
//
// Events are forgotten with the temporary database, unless -db names a file. Then GITHUB_SECRET, STRIPE_SECRET and
// STANDARD_SECRET have to be set; else those that are not are what README.md says.
//
// You would write hooks.go yourself. Exit status: 0 after an interrupt, 1 if something broke, 2 for wrong flags.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr, func(net.Addr) {}))
}

// run returns the exit status. The end of ctx begins the drain. It says where it listens as soon as it does.
func run(
	ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer, listens func(net.Addr),
) int {
	flags := flag.NewFlagSet("webhook", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8731", "take webhooks at this `address`")
	path := flags.String("db", "", "keep outbox and claims in this SQLite `file` (default: a temporary one)")
	lease := flags.Duration("lease", 5*time.Second, "how long senders wait for a request that died with its process")
	return shop.Main(ctx, flags, args, stderr, func(ctx context.Context, dir string) (bool, error) {
		secrets, err := secretsOf(env, *path == "")
		if err != nil {
			return false, err
		}
		file := cmp.Or(*path, filepath.Join(dir, "hooks.db"))
		return true, service(ctx, *listen, file, *lease, secrets, stdout, listens)
	})
}

// service takes webhooks until ctx ends.
func service(
	ctx context.Context, address, path string, lease time.Duration, secrets map[string]string, stdout io.Writer,
	listens func(net.Addr),
) (err error) {
	sent := &published{out: stdout}
	h, err := open(ctx, path, lease, secrets)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.db.Close()) }()
	relay, err := outbox.NewRelay(h.db.Box, sent, outbox.Config{})
	if err != nil {
		return err
	}
	var cleaning sync.WaitGroup
	cleaned, stop := context.WithCancel(ctx)
	defer cleaning.Wait()
	defer stop()
	cleaning.Go(func() { _ = h.db.Leased.RunCleaning(cleaned) }) // without it every event is kept for ever
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen at -listen %s: %w", address, err)
	}
	shop.Say(stdout, "taking webhooks at http://%s/hooks/github, …/stripe and …/standard\n", l.Addr())
	listens(l.Addr())
	return shop.Serve(ctx, l, h.routes(sent), relay.Run)
}
