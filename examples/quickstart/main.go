// The quickstart is a small shop whose orders are charged by three stacks side by side: guarded by Oncemill, unguarded,
// and behind Watermill's own Deduplicator. Everything that at-least-once delivery can do to a message is done to some
// of them. At the end it closes the books.
//
//	go run ./examples/quickstart
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
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/observe"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox"
)

type options struct {
	redis  string
	nats   string
	orders int
	crash  string
	dir    string

	seed      uint64
	temporary bool // dir is removed at the end
}

func main() { os.Exit(program(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

func program(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := options{seed: 1}
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.StringVar(&o.redis, "redis", "", "keep dedup records in the Redis at this `URL` (default: in an SQLite file)")
	flags.StringVar(&o.nats, "nats", "", "use the NATS JetStream server at this `URL` (default: embedded)")
	flags.IntVar(&o.orders, "orders", 300, "how many orders to place, 10 to 100000")
	flags.StringVar(&o.crash, "crash", "", "effect: also kill handlers between effect and outcome, the limit of tier 1")
	flags.StringVar(&o.dir, "dir", "", "keep all files in this `directory`, and go on with those of an earlier start")
	return shop.Main(ctx, flags, args, stderr, func(ctx context.Context, dir string) (bool, error) {
		start := time.Now()
		o.temporary, o.dir = o.dir == "", cmp.Or(o.dir, dir)
		all, err := play(ctx, o, stderr)
		if err != nil {
			return false, err
		}
		_, err = fmt.Fprintf(stdout, "%s\n%d orders in %.1f s\n", all.table(), o.orders, time.Since(start).Seconds())
		return all[guarded].balance(), err
	})
}

// play is the whole story.
func play(ctx context.Context, o options, out io.Writer) (all report, err error) {
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

	// What Oncemill counts, as a dashboard would show it.
	metrics := metric.NewManualReader()
	telemetry, stop, err := observe.Start(ctx, "quickstart", metrics)
	if err != nil {
		return nil, err
	}
	defer stop(ctx)

	// A store writes each order and its event in one transaction: the event goes into an outbox.
	s, err := openStore(ctx, o.dir)
	if err != nil {
		return nil, err
	}
	defer also(s.db.Close)

	// A relay publishes the events to NATS JetStream. Some acknowledgements do not reach it, so it publishes again.
	b, err := openBroker(ctx, s.names, o, telemetry)
	if err != nil {
		return nil, err
	}
	defer shop.Finish(ctx, &err, b.close)
	orders := plan(s.names.run, o)
	fates := map[string]fault{}
	for _, p := range orders {
		fates[p.ID] = p.fault
	}
	lossy := &shop.Forgetful{Publisher: b.publisher, Loses: func(ctx context.Context, id string) bool {
		if fates[id] != ackOfRelay {
			return false
		}
		first, err := s.first(ctx, "relay", id)
		return first && err == nil
	}}
	relay, err := outbox.NewRelay(s.box, lossy, outbox.Config{
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

	// The guard's records are in a database of their own.
	records, closeRecords, err := openRecords(ctx, o)
	if err != nil {
		return nil, err
	}
	defer also(closeRecords)

	// Three stacks get every event, and charge cards. Each has its own ledger.
	for _, name := range stacks {
		st := &stack{name: name, shop: s, broker: b, fates: fates, telemetry: telemetry}
		if name == guarded {
			st.records = &mortality{Store: records, shop: s}
		}
		stop, err := st.start(ctx)
		if err != nil {
			return nil, fmt.Errorf("start stack %s: %w", name, err)
		}
		defer also(stop)
	}

	// Customers place orders, and producers do what careless or unlucky ones do.
	shop.Say(out, "%d orders through three stacks. Faults are on.\n", len(orders))
	err = shop.Each(ctx, len(orders), 4, func(ctx context.Context, i int) error {
		if i%max(100, len(orders)/20) == 0 && i > 0 {
			shop.Say(out, "  placed %d\n", i)
		}
		return placeWithLuck(ctx, s, b, orders[i])
	})
	if err != nil {
		return nil, err
	}

	// When nothing is under way any more, the books are closed.
	shop.Say(out, "  placed %d; waiting until every message is acknowledged\n", len(orders))
	if err := shop.Settled(ctx, s.box, b.js, b.names.stream(), stacks...); err != nil {
		return nil, err
	}
	claims, err := observe.Claims(ctx, metrics)
	if err != nil {
		return nil, err
	}
	return closeBooks(ctx, s, b, fates, claims)
}

// openRecords opens the dedup store. SQLite has one writer a file, and the shop writes much, so the records have a file
// of their own. The ledger is the outside world here, so nothing is lost by that. A handler whose effects are in its
// own database would keep both in one file, and use the store's inbox.
func openRecords(ctx context.Context, o options) (dedupstore.Store, func() error, error) {
	if o.redis != "" {
		return shop.OpenRedis(ctx, o.redis)
	}
	db, err := shop.OpenSQLite(ctx, filepath.Join(o.dir, "dedup.db"))
	if err != nil {
		return nil, nil, err
	}
	return db.Leased, db.Close, nil
}
