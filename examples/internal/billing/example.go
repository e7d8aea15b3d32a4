// Package billing is what the programs for NATS and Kafka share: their story, a bank that loses its nerve, books that
// must balance. The lessons are in the examples themselves.
package billing

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/observe"
	"github.com/oncemill/oncemill/examples/internal/shop"
)

// An Example is what the programs for NATS and Kafka differ in.
type Example struct {
	Name        string
	AddressFlag string // where the broker is
	Address     string // unless the flag says otherwise

	// Open connects to the broker, or starts one in this process, and makes there what the run needs. It may use dir.
	Open func(ctx context.Context, o Options, dir string) (Broker, error)

	Wrap  func(dedupstore.Store) dedupstore.Store // for tests: stands between guard and store
	Books func(Books)                             // for tests: gets the books
}

// Options are the flags of an example, and the name of its run.
type Options struct {
	Embedded bool   // everything runs in this process
	Address  string // of the broker
	Redis    string
	Orders   int
	Run      string // part of all names, so that runs keep out of each other's way
}

// A Broker is a connection to one, with both services on it. It is safe for concurrent use.
type Broker interface {
	// Place publishes an order. Publishing it again is a retry.
	Place(ctx context.Context, o shop.Order) error

	// Consume charges orders until ctx ends, and then drains.
	Consume(ctx context.Context, store dedupstore.Store, bank *Bank) error

	// AtRest reports whether everything that was published has been acknowledged.
	AtRest(ctx context.Context) (bool, error)

	// DeadLetters returns the orders that were given up.
	DeadLetters(ctx context.Context) ([]shop.Order, error)

	// Close removes what the run has made, and disconnects.
	Close(ctx context.Context) error
}

// Main runs the example as a program, and returns its exit status.
func (e Example) Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := Options{Run: shop.RunName()}
	flags := flag.NewFlagSet(e.Name, flag.ContinueOnError)
	flags.BoolVar(&o.Embedded, "embedded", false, "run everything in this process: nothing has to be installed")
	flags.StringVar(&o.Address, e.AddressFlag, e.Address, "`where` the broker is")
	flags.StringVar(&o.Redis, "redis", "redis://127.0.0.1:6379", "keep outcomes in the Redis at this `URL`")
	flags.IntVar(&o.Orders, "orders", 300, "how many orders to place, 10 to 100000")
	return shop.Main(ctx, flags, args, stderr, func(ctx context.Context, dir string) (bool, error) {
		err := shop.OnlyServers(flags, o.Embedded, e.AddressFlag, "redis")
		if err := errors.Join(err, shop.CheckRange("orders", o.Orders, 10, 100_000)); err != nil {
			return false, err
		}
		b, err := e.run(ctx, o, dir, stderr)
		if err != nil {
			return false, err
		}
		if e.Books != nil {
			e.Books(b)
		}
		return b.Balance(), b.print(stdout)
	})
}

// run plays, and closes the books. Its messages to people go to out.
func (e Example) run(ctx context.Context, o Options, dir string, out io.Writer) (b Books, err error) {
	reader := metric.NewManualReader()
	stop, err := observe.Start(ctx, e.Name, reader)
	if err != nil {
		return b, err
	}
	defer stop(ctx)
	var store dedupstore.Store
	if o.Embedded {
		store, err = dedupstore.NewMemory(dedupstore.MemoryConfig{})
	} else {
		var closing func() error
		if store, closing, err = openRedis(ctx, o.Redis); err == nil {
			defer func() { err = errors.Join(err, closing()) }()
		}
	}
	if err != nil {
		return b, err
	}
	if e.Wrap != nil {
		store = e.Wrap(store)
	}
	broker, err := e.Open(ctx, o, dir)
	if err != nil {
		return b, err
	}
	defer shop.Finish(ctx, &err, broker.Close)
	orders, bank := plan(o), NewBank()
	if err := play(ctx, broker, store, bank, orders, out); err != nil {
		return b, err
	}
	dead, err := broker.DeadLetters(ctx)
	if err != nil {
		return b, fmt.Errorf("read the dead letters: %w", err)
	}
	b = closeBooks(orders, bank, dead)
	claims, err := shop.Claims(ctx, reader)
	known := shop.Outcomes(claims)
	b.Suppressed = known["duplicate_completed"] + known["duplicate_failed"]
	return b, err
}

// play runs the producer, and one consumer after another: the first is stopped in the middle.
func play(
	ctx context.Context, br Broker, store dedupstore.Store, bank *Bank, orders []shop.Order, out io.Writer,
) error {
	shop.Say(out, "%d orders; the consumer restarts half way\n", len(orders))
	half := len(orders) / 2
	err := consuming(ctx, br, store, bank, func(ctx context.Context) error { return produce(ctx, br, orders[:half]) })
	if err != nil {
		return err
	}
	shop.Say(out, "the consumer has drained and stopped; the next one starts\n")
	return consuming(ctx, br, store, bank, func(ctx context.Context) error {
		if err := produce(ctx, br, orders[half:]); err != nil {
			return err
		}
		// Brokers have windows of their own in which they drop repetitions. In the examples they are shorter than this,
		// as in production they are shorter than the retries of people, phones and outboxes.
		if err := shop.Pause(ctx, 400*time.Millisecond); err != nil {
			return err
		}
		var again []shop.Order // as by a producer that missed the acknowledgement
		for i := 0; i < len(orders); i += placedAgain {
			again = append(again, orders[i])
		}
		if err := produce(ctx, br, again); err != nil {
			return err
		}
		return shop.Poll(ctx, 50*time.Millisecond, func() (bool, error) {
			rest, err := br.AtRest(ctx)
			return rest && err == nil, nil
		})
	})
}

func produce(ctx context.Context, br Broker, orders []shop.Order) error {
	for i, o := range orders {
		if err := shop.Pause(ctx, 4*time.Millisecond); err != nil {
			return err
		}
		if err := br.Place(ctx, o); err != nil {
			return fmt.Errorf("stopped at order %d of %d: %w", i, len(orders), err)
		}
	}
	return nil
}

// consuming runs a consumer while do runs, and lets it drain.
func consuming(
	ctx context.Context, br Broker, store dedupstore.Store, bank *Bank, do func(context.Context) error,
) error {
	work, drain := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := br.Consume(work, store, bank)
		drain(errors.Join(errors.New("the consumer ended"), err))
		ended <- err
	}()
	err := do(work)
	drain(nil)
	return errors.Join(err, <-ended)
}
