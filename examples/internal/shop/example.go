package shop

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/observe"
)

// An Example is what the programs for NATS and Kafka differ in.
type Example struct {
	Name        string
	AddressFlag string // where the broker is
	Address     string // unless the flag says otherwise

	// Open connects to the broker, or starts one in this process, and makes there what the run needs. It may use dir.
	Open func(ctx context.Context, o Options, dir string) (Broker, error)

	Seed  uint64                                  // draws orders, duplicates and failures
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
	Place(ctx context.Context, o Order) error

	// Repeat publishes a copy of an order as relays do that know nothing of deduplication.
	Repeat(ctx context.Context, o Order) error

	// Consume charges orders until ctx ends, and then drains.
	Consume(ctx context.Context, store dedupstore.Store, bank *Bank) error

	// AtRest reports whether everything that was published has been acknowledged.
	AtRest(ctx context.Context) (bool, error)

	// DeadLetters returns the orders that were given up.
	DeadLetters(ctx context.Context) ([]Order, error)

	// Close removes what the run has made, and disconnects.
	Close(ctx context.Context) error
}

// An Order is what a customer wants to pay for.
type Order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

// JSON is the order as it travels.
func (o Order) JSON() []byte {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // a string and a number
	}
	return b
}

// ParseOrder reads what JSON wrote.
func ParseOrder(payload []byte) (Order, error) {
	var o Order
	if err := json.Unmarshal(payload, &o); err != nil {
		return o, fmt.Errorf("this is not an order: %w", err)
	}
	return o, nil
}

// What happens to messages of producers.
const (
	retried Luck = "the producer publishes it again, because it missed the acknowledgement"
	relayed Luck = "a relay repeats it"
)

// A planned order is an order and its luck.
type planned struct {
	Order
	luck Luck
}

// plan draws orders from the seed. Their IDs begin with the name of the run, since Redis and brokers remember earlier
// runs. The first orders meet every kind of luck, so that a short run does too.
func plan(o Options, seed uint64) []planned {
	rng := rand.New(rand.NewPCG(seed, 0))
	kinds := [10]Luck{retried, relayed, Fine, Fine, Fine, Fine, Fine, Fine, Fine, Fine}
	orders := make([]planned, o.Orders)
	for i := range orders {
		luck := kinds[rng.IntN(10)]
		if i < 3 {
			luck = kinds[i]
		}
		orders[i] = planned{Order{fmt.Sprintf("%s-%d-%05d", o.Run, seed, i), 100 + rng.IntN(9900)}, luck}
	}
	return orders
}

// Main runs the example as a program, and returns its exit status.
func (e Example) Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := Options{Run: RunName()}
	flags := flag.NewFlagSet(e.Name, flag.ContinueOnError)
	flags.BoolVar(&o.Embedded, "embedded", false, "run everything in this process: nothing has to be installed")
	flags.StringVar(&o.Address, e.AddressFlag, e.Address, "`where` the broker is")
	flags.StringVar(&o.Redis, "redis", "redis://127.0.0.1:6379", "keep outcomes in the Redis at this `URL`")
	flags.IntVar(&o.Orders, "orders", 300, "how many orders to place, 10 to 100000")
	return Main(ctx, flags, args, stderr, func(ctx context.Context, dir string) (bool, error) {
		err := OnlyServers(flags, o.Embedded, e.AddressFlag, "redis")
		if err := errors.Join(err, CheckRange("orders", o.Orders, 10, 100_000)); err != nil {
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

// run plays, and closes the books. What it says to people goes to out.
func (e Example) run(ctx context.Context, o Options, dir string, out io.Writer) (b Books, err error) {
	reader := metric.NewManualReader()
	stop, err := observe.Global(ctx, e.Name, reader)
	if err != nil {
		return b, err
	}
	defer stop(ctx)
	r := &run{out: out, orders: plan(o, e.Seed), bank: newBank(o.Run, e.Seed)}
	closeStore, err := r.openStore(ctx, o)
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	if e.Wrap != nil {
		r.store = e.Wrap(r.store)
	}
	if r.broker, err = e.Open(ctx, o, dir); err != nil {
		return b, err
	}
	defer Finish(ctx, &err, r.broker.Close)
	if err := r.play(ctx); err != nil {
		return b, err
	}
	dead, err := r.broker.DeadLetters(ctx)
	if err != nil {
		return b, fmt.Errorf("read the dead letters: %w", err)
	}
	b = closeBooks(r.orders, r.bank, dead)
	claims, err := observe.Claims(ctx, reader)
	b.Suppressed = claims["duplicate_completed"] + claims["duplicate_failed"]
	return b, err
}

// A run is an example at work.
type run struct {
	out    io.Writer // for people
	orders []planned
	bank   *Bank
	store  dedupstore.Store
	broker Broker
}

// openStore opens the store of outcomes: in memory if embedded, else Redis.
func (r *run) openStore(ctx context.Context, o Options) (closing func() error, err error) {
	if !o.Embedded {
		r.store, closing, err = OpenRedis(ctx, o.Redis)
		return closing, err
	}
	r.store, err = dedupstore.NewMemory(dedupstore.MemoryConfig{})
	return func() error { return nil }, err
}

const (
	pace = 4 * time.Millisecond // the time between two orders

	// later is after how many orders a producer that missed an acknowledgement publishes again. Brokers have windows of
	// their own in which they drop repetitions; in the examples they are shorter than this, as in production they are
	// shorter than the retries of people, phones and outboxes.
	later = 100
)

// produce places the orders, and does what unlucky producers and careless relays do.
func (r *run) produce(ctx context.Context) error {
	for i := range len(r.orders) + later {
		err := Pause(ctx, pace)
		if i < len(r.orders) && err == nil {
			if err = r.broker.Place(ctx, r.orders[i].Order); err == nil && r.orders[i].luck == relayed {
				err = r.broker.Repeat(ctx, r.orders[i].Order)
			}
		}
		if i >= later && r.orders[i-later].luck == retried && err == nil {
			err = r.broker.Place(ctx, r.orders[i-later].Order)
		}
		if err != nil {
			return fmt.Errorf("stopped at order %d of %d: %w", i, len(r.orders), err)
		}
		if i%250 == 249 {
			Say(r.out, "placed %d, charged %d\n", min(i+1, len(r.orders)), r.bank.charged())
		}
	}
	return nil
}

// play runs the producer, and one consumer after another: the first is stopped in the middle.
func (r *run) play(ctx context.Context) error {
	Say(r.out, "%d orders; the consumer restarts half way\n", len(r.orders))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var produced atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.produce(ctx); err != nil {
			cancel(err) // nobody waits for orders that will not come
		}
		produced.Store(true)
	}()
	err := r.consumeUntil(ctx, func() bool { return r.bank.charged() >= len(r.orders)/2 })
	if err == nil {
		Say(r.out, "the consumer has drained and stopped; the next one starts\n")
		quiet := 0 // how often in a row everything was acknowledged
		err = r.consumeUntil(ctx, func() bool {
			quiet++
			if rest, err := r.broker.AtRest(ctx); !produced.Load() || !rest || err != nil {
				quiet = 0
			}
			return quiet == 5
		})
	}
	cancel(err)
	<-ended
	return err
}

// consumeUntil runs one consumer until the condition is met, and lets it drain.
func (r *run) consumeUntil(ctx context.Context, met func() bool) error {
	work, drain := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := r.broker.Consume(work, r.store, r.bank)
		drain(errors.Join(errors.New("the consumer ended"), err))
		ended <- err
	}()
	err := Poll(work, 50*time.Millisecond, func() (bool, error) { return met(), nil })
	drain(nil)
	return errors.Join(err, <-ended)
}
