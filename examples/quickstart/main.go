// The quickstart is a small shop whose orders are charged by three stacks side by side: guarded by Oncemill, unguarded,
// and behind Watermill's own Deduplicator. Everything that at-least-once delivery can do to a message is done to some
// of them. At the end it closes the books.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -console    # and watch it in a browser
//
// It needs nothing but Go: NATS JetStream is embedded, and the outbox, the ledger and the dedup store are SQLite files.
// The function play in this file tells the story; guard in stacks.go is the guard itself. Exit status: 0 if oncemill's
// ledger balances, 1 if it does not or something broke, 2 for wrong flags.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox"
)

type options struct {
	nats    string
	orders  int
	crash   string
	dir     string
	console bool

	seed      uint64
	temporary bool // dir is removed at the end
}

func main() { os.Exit(program(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

func program(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := options{seed: 1}
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.StringVar(&o.nats, "nats", "", "use the NATS JetStream server at this `URL` (default: embedded)")
	flags.IntVar(&o.orders, "orders", 300, "how many orders to place, 10 to 100000")
	flags.StringVar(&o.crash, "crash", "", "effect: also kill handlers between effect and outcome, the limit of tier 1")
	flags.StringVar(&o.dir, "dir", "", "keep all files in this `directory`, and go on with those of an earlier start")
	flags.BoolVar(&o.console, "console", false, "show the books and the console on a free loopback port, until Ctrl-C")
	return shop.Main(ctx, flags, args, stderr, func(ctx context.Context, dir string) (bool, error) {
		o.temporary, o.dir = o.dir == "", cmp.Or(o.dir, dir)
		all, err := play(ctx, o, stdout, stderr)
		return all[guarded].balance(), err
	})
}

// A story is what play is about.
type story struct {
	shop    *store
	broker  *broker
	fates   map[string]fault
	stacks  []*stack
	metrics *metric.ManualReader // what Oncemill counts, as a dashboard would show it
	closed  atomic.Bool          // nothing is under way any more
}

// play is the whole story. It prints the books on stdout, and what goes on meanwhile on out.
func play(ctx context.Context, o options, stdout, out io.Writer) (all report, err error) {
	if err := shop.CheckRange("orders", o.orders, 10, 100_000); err != nil {
		return nil, err
	}
	if o.crash != "" && o.crash != "effect" {
		return nil, shop.WrongFlag("-crash is %q, want effect", o.crash)
	}
	if err := os.MkdirAll(o.dir, 0o750); err != nil {
		return nil, fmt.Errorf("-dir: %w", err)
	}
	also := func(end func() error) { err = errors.Join(err, end()) }
	start := time.Now()
	shop.Say(out, "A shop, a NATS server and three stacks start in this process: %d orders.\n", o.orders)
	s := &story{fates: map[string]fault{}, metrics: metric.NewManualReader()}
	telemetry := oncemill.Telemetry{MeterProvider: metric.NewMeterProvider(metric.WithReader(s.metrics))}

	// A store writes each order and its event in one transaction: the event goes into an outbox.
	if s.shop, err = openStore(ctx, o.dir); err != nil {
		return nil, err
	}
	defer also(s.shop.db.Close)

	// A relay publishes the events to NATS JetStream. Some acknowledgements do not reach it, so it publishes again.
	if s.broker, err = openBroker(ctx, s.shop.names, o, telemetry); err != nil {
		return nil, err
	}
	defer shop.Finish(ctx, &err, s.broker.close)
	orders := plan(s.shop.names.run, o)
	for _, p := range orders {
		s.fates[p.ID] = p.fault
	}
	lossy := &shop.Forgetful{Publisher: s.broker.publisher, Loses: func(ctx context.Context, id string) bool {
		if s.fates[id] != ackOfRelay {
			return false
		}
		first, err := s.shop.first(ctx, "relay", id)
		return first && err == nil
	}}
	relay, err := outbox.NewRelay(s.shop.box, lossy, outbox.Config{
		BatchSize: 20, PublishTimeout: time.Second, Lease: 3 * time.Second,
		Backoff: oncemill.Backoff{Min: 50 * time.Millisecond, Max: time.Second},
		Logger:  slog.New(slog.DiscardHandler), Telemetry: telemetry,
	})
	if err != nil {
		return nil, err
	}
	relaying, stopRelay := context.WithCancel(ctx)
	relayed := make(chan error, 1)
	go func() { relayed <- relay.Run(relaying) }()
	defer also(func() error { return <-relayed })
	defer stopRelay()

	// The guard's records are in a file of their own: SQLite has one writer a file, and the shop writes much. The
	// ledger is the outside world here, so nothing is lost by that. A handler whose effects are in its own database
	// would keep both in one file, and use the store's inbox.
	records, err := shop.OpenSQLite(ctx, filepath.Join(o.dir, "dedup.db"))
	if err != nil {
		return nil, err
	}
	defer also(records.Close)

	// Three stacks get every event, and charge cards. Each has its own ledger.
	for _, name := range stacks {
		st := &stack{name: name, shop: s.shop, broker: s.broker, fates: s.fates, telemetry: telemetry}
		if name == guarded {
			st.records = &mortality{Inspector: records.Leased, shop: s.shop}
		}
		stop, err := st.start(ctx)
		if err != nil {
			return nil, fmt.Errorf("start stack %s: %w", name, err)
		}
		defer also(stop)
		s.stacks = append(s.stacks, st)
	}

	// With -console people look on, and orders come slowly.
	pace := time.Duration(0)
	if o.console {
		pace = 200 * time.Millisecond
		stop, err := s.show(ctx, records.Leased, out)
		if err != nil {
			return nil, err
		}
		defer also(stop)
	}

	// Customers place orders, and producers do what careless or unlucky ones do.
	shop.Say(out, "Placed")
	began := time.Now()
	err = shop.Each(ctx, len(orders), 4, func(ctx context.Context, i int) error {
		if err := shop.Pause(ctx, time.Until(began.Add(time.Duration(i)*pace))); err != nil {
			return err
		}
		if i%max(100, len(orders)/10) == 0 && i > 0 {
			shop.Say(out, " %d", i)
		}
		return placeWithLuck(ctx, s.shop, s.broker, orders[i])
	})
	if err != nil {
		return nil, err
	}

	// When nothing is under way any more, the books are closed.
	shop.Say(out, " %d; waiting until each message is acknowledged.\n", len(orders))
	if err := shop.Settled(ctx, s.shop.box, s.broker.js, s.broker.names.stream(), stacks...); err != nil {
		return nil, err
	}
	s.closed.Store(true)
	if all, err = s.books(ctx); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(stdout, "%s%d orders in %.1f s.\n", all.table(), o.orders, time.Since(start).Seconds())
	if o.console && err == nil {
		shop.Say(out, "The books stay open in your browser until you press Ctrl-C.\n")
		<-ctx.Done()
	}
	return all, err
}
