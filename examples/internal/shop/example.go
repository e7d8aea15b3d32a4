package shop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// An Example is what the programs differ in.
type Example struct {
	Name         string
	AddressFlag  string // where the broker is
	Address      string // unless the flag says otherwise
	AddressUsage string
	CheckAddress func(string) error

	// Open connects to the broker, or starts one in this process, and makes there what the run needs. It may use dir.
	Open func(ctx context.Context, o Options, dir string) (Broker, error)

	// Wrap stands between guard and store. Nil: nothing does.
	Wrap func(dedupstore.Store) dedupstore.Store
}

// A Broker is a connection to one, with both services on it. It is safe for concurrent use.
type Broker interface {
	// Place publishes an order. Publishing it again is a retry.
	Place(ctx context.Context, o Order) error

	// Repeat publishes a copy of an order as relays do that know nothing of deduplication.
	Repeat(ctx context.Context, o Order) error

	// Consume charges orders until ctx ends, and then drains.
	Consume(ctx context.Context, store dedupstore.Store, bank *Bank) error

	// AtRest reports whether everything that was published has been acknowledged.
	AtRest(ctx context.Context) (bool, error)

	// Deliveries is how many messages consumers have got so far, repetitions included.
	Deliveries(ctx context.Context) (int, error)

	// DeadLetters returns the orders that were given up.
	DeadLetters(ctx context.Context) ([]Order, error)

	// Close removes what a temporary run has made, and disconnects.
	Close(ctx context.Context) error
}

// Main runs the example as a program, and returns its exit status: 0 if the books balance, 1 if they do not or something
// broke, 2 for wrong flags. The end of ctx, SIGINT and SIGTERM begin the drain.
func (e Example) Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := e.parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		say(stderr, "%s: %v\n", e.Name, err)
		return 2
	}
	if !o.Verbose {
		slog.SetDefault(slog.New(slog.DiscardHandler))
		redis.SetLogger(silent{})
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	balanced, err := e.run(ctx, o, stdout, stderr)
	if err != nil {
		say(stderr, "%s: %v\n", e.Name, err)
	}
	if err != nil || !balanced {
		return 1
	}
	return 0
}

// silent is a logger of go-redis.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// say prints to people. That it cannot be printed stops nothing.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// closeTime is how long the end may take.
const closeTime = 10 * time.Second

// run plays the roles and reports whether the books balance.
func (e Example) run(ctx context.Context, o Options, stdout, stderr io.Writer) (balanced bool, err error) {
	start := time.Now()
	dir, err := os.MkdirTemp("", "oncemill-"+e.Name+"-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.Ledger == "" {
		o.Ledger = filepath.Join(dir, "ledger")
	}
	r, err := e.open(ctx, o, dir, stderr)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		err = errors.Join(err, r.close(ctx))
	}()
	if err := r.play(ctx); err != nil {
		return false, err
	}
	if o.Role == RoleProducer {
		_, err := fmt.Fprintf(stdout, "%d orders placed. The consumer of -run %s closes the books.\n", o.Orders, o.Run)
		return true, err
	}
	b, err := r.closeBooks(context.WithoutCancel(ctx))
	if err != nil {
		return false, err
	}
	complete := o.Role == RoleBoth && ctx.Err() == nil
	if err := b.print(stdout, o.Out, complete); err != nil {
		return false, err
	}
	say(stderr, "seed %d, %.1f s\n", o.Seed, time.Since(start).Seconds())
	return b.Balance() || o.Role == RoleConsumer && b.DoubleCharges == 0, nil
}
