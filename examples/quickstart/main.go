// The quickstart is a small shop whose orders are charged by three stacks side by side: guarded by Oncemill, unguarded,
// and behind Watermill's own Deduplicator. Everything that at-least-once delivery can do to a message is done to some
// of them. At the end it closes the books.
//
//	go run ./examples/quickstart
//
// It needs nothing but Go: NATS JetStream is embedded; the outbox, the ledger and the dedup store are SQLite files. Exit status: 0 if oncemill's ledger balances, 1 if it does not or something broke, 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Where dedup records are kept.
const (
	inMemory = "memory"
	inSQLite = "sqlite"
	inRedis  = "redis"
)

type options struct {
	store       string // memory, sqlite or redis
	redisURL    string
	natsURL     string
	orders      int
	seed        uint64
	out         string
	crashEffect bool
	dir         string
	temporary   bool // dir is removed at the end
}

func parseFlags(args []string, stderr io.Writer) (options, error) {
	o := options{}
	var crash string
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.store, "store", "", "keep dedup records in memory, which forgets them when the process ends, or in an sqlite file (default: sqlite)")
	flags.StringVar(&o.redisURL, "redis", "", "keep dedup records in the Redis at this `URL`, such as redis://127.0.0.1:6379/0, and not in -store")
	flags.StringVar(&o.natsURL, "nats", "", "use the NATS JetStream server at this `URL`, such as nats://127.0.0.1:4222 (default: embedded)")
	flags.IntVar(&o.orders, "orders", 300, "how many orders to place, 10 to 100000")
	flags.Uint64Var(&o.seed, "seed", 1, "draws amounts and faults")
	flags.StringVar(&o.out, "out", "table", "print the books as table or json")
	flags.StringVar(&crash, "crash", "", "effect: also kill handlers between effect and outcome, which shows the limit of tier 1")
	flags.StringVar(&o.dir, "dir", "", "keep all files in this `directory` and go on where an earlier process stopped (default: a new one, removed at the end)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.crashEffect = crash == "effect"
	switch {
	case o.store != "" && o.redisURL != "":
		return o, fmt.Errorf("-store is %q although -redis is given: want one of them", o.store)
	case o.store != "" && o.store != inMemory && o.store != inSQLite:
		return o, fmt.Errorf("-store is %q, want memory or sqlite", o.store)
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.orders < 10 || o.orders > 100_000:
		return o, fmt.Errorf("-orders is %d, want 10 to 100000", o.orders)
	case o.out != "table" && o.out != "json":
		return o, fmt.Errorf("-out is %q, want table or json", o.out)
	case crash != "" && !o.crashEffect:
		return o, fmt.Errorf("-crash is %q, want effect", crash)
	}
	for name, schemes := range map[string][]string{"redis": {o.redisURL, "redis", "rediss", "unix"}, "nats": {o.natsURL, "nats", "tls"}} {
		if err := checkURL(name, schemes[0], schemes[1:]); err != nil {
			return o, err
		}
	}
	switch {
	case o.redisURL != "":
		o.store = inRedis
	case o.store == "":
		o.store = inSQLite
	}
	return o, nil
}

func main() { os.Exit(mainStatus()) }

func mainStatus() int {
	o, err := parseFlags(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		say(os.Stderr, "quickstart: %v\n", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	balanced, err := run(ctx, o, os.Stdout, os.Stderr)
	if err != nil {
		say(os.Stderr, "quickstart: %v\n", err)
	}
	if err != nil || !balanced {
		return 1
	}
	return 0
}

// run plays the whole demo and reports whether the guarded ledger balances.
func run(ctx context.Context, o options, stdout, stderr io.Writer) (balanced bool, err error) {
	start := time.Now()
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "oncemill-quickstart-")
		if err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		o.dir, o.temporary = dir, true
	} else if err := os.MkdirAll(o.dir, 0o750); err != nil {
		return false, fmt.Errorf("-dir: %w", err)
	}
	d, err := open(ctx, o)
	if err != nil {
		return false, err
	}
	all, err := d.play(ctx, stderr)
	if err := errors.Join(err, d.close()); err != nil {
		return false, err
	}
	if o.out == "json" {
		err = printJSON(stdout, all)
	} else {
		_, err = fmt.Fprintf(stdout, "%s\n%d orders, seed %d, dedup records in %s, %.1f s\n", table(all, d.shop.resumed), o.orders, o.seed, o.store, time.Since(start).Seconds())
	}
	return all[guarded].balance(), err
}
