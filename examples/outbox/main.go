// The outbox example is an HTTP service that takes orders. It writes each order and its event in one PostgreSQL
// transaction; a relay in the same process publishes the events to NATS JetStream. Clients repeat requests and
// hang up, transactions are rolled back, acknowledgements of the broker get lost, the relay is stopped half way and
// another one takes over. At the end it closes the books: every committed order has its event, no other order has one.
//
//	go run ./examples/outbox -embedded
//
// needs nothing but Go, and therefore uses SQLite instead of PostgreSQL; NATS runs in this process. Without -embedded
// the example uses the servers of compose.yaml:
//
//	docker compose up -d --wait
//	go run ./examples/outbox
//	go run ./examples/outbox -listen 127.0.0.1:8080    # only the service, until interrupted
//
// A run with books removes what it has made there. The service keeps it, for the next start: the schema oncemill_demo,
// and the stream OUTBOX-demo.
//
// What you would write yourself stands in service.go and orders.go. Exit status: 0 if the books balance, 1 if they do
// not or something broke, 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/examples/internal/observe"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func main() { os.Exit(program{seed: 1}.main(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// A program is the example.
type program struct {
	seed   uint64
	tamper func(*rig)  // breaks something, for tests of the books; nil: nothing
	closed func(Books) // gets the books, for tests; nil: nothing does
}

// options are the flags.
type options struct {
	embedded bool
	postgres string
	nats     string
	listen   string // empty: play the load
	orders   int
	run      string // part of all names, so that runs keep out of each other's way
}

// topic is where events go: a name of this example alone, so that others can use the same servers.
func (o options) topic() string { return "outbox." + o.run + ".orders" }

func (p program) main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := options{run: shop.RunName()}
	flags := flag.NewFlagSet("outbox", flag.ContinueOnError)
	flags.BoolVar(&o.embedded, "embedded", false, "install nothing: use SQLite, not PostgreSQL, and a NATS in here")
	flags.StringVar(&o.postgres, "postgres", "postgres://postgres@127.0.0.1:5432/shop", "keep orders at this `URL`")
	flags.StringVar(&o.nats, "nats", "nats://127.0.0.1:4222", "publish to the NATS JetStream server at this `URL`")
	flags.StringVar(&o.listen, "listen", "", "take orders at this `address` until interrupted; no load is played")
	flags.IntVar(&o.orders, "orders", 300, "how many orders the load places, 10 to 100000")
	return shop.Main(ctx, flags, args, stderr, func(ctx context.Context, dir string) (bool, error) {
		err := shop.OnlyServers(flags, o.embedded, "postgres", "nats")
		if err := errors.Join(err, shop.CheckRange("orders", o.orders, 10, 100_000)); err != nil {
			return false, err
		}
		if o.listen != "" {
			o.run = "demo"
		}
		return p.run(ctx, o, dir, stdout, stderr)
	})
}

// run serves, or plays the load and reports whether the books balance. What it says to people goes to out.
func (p program) run(ctx context.Context, o options, dir string, stdout, out io.Writer) (balanced bool, err error) {
	stop, err := observe.Global(ctx, "outbox")
	if err != nil {
		return false, err
	}
	defer stop(ctx)
	g := newGame(out, plan(o, p.seed))
	r, err := openRig(ctx, o, dir, g.reserve)
	if err != nil {
		return false, err
	}
	defer shop.Finish(ctx, &err, r.close)
	if p.tamper != nil {
		p.tamper(r)
	}
	if o.embedded {
		shop.Say(out, "-embedded: orders are kept in SQLITE INSTEAD OF POSTGRESQL, and NATS runs in this process\n")
	}
	if o.listen != "" {
		return true, listen(ctx, o, r, out)
	}
	b, err := g.play(ctx, r)
	if err != nil {
		return false, err
	}
	if p.closed != nil {
		p.closed(b)
	}
	return b.Balance(), b.print(stdout)
}

// listen takes orders until ctx ends.
func listen(ctx context.Context, o options, r *rig, out io.Writer) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	shop.Say(out, "taking orders until interrupted; events go to %s\n", o.topic())
	shop.Say(out, "  curl -d '{\"id\":\"4711\",\"cents\":1200}' http://%s/orders\n", l.Addr())
	publish := func(ctx context.Context) error { return relay(ctx, r.db.box, r.publisher) }
	if err := shop.Serve(ctx, l, handler(r.place), publish); err != nil {
		return err
	}
	stats, err := r.db.box.Stats(context.WithoutCancel(ctx))
	shop.Say(out, "drained; %d events wait in the outbox, %d are dead\n", stats.Pending, stats.Dead)
	return err
}

// A rig is what the service stands on.
type rig struct {
	db        *database
	place     placing
	js        jetstream.JetStream
	publisher producer.Publisher
	close     func(context.Context) error
	stream    string
	topic     string
}

func openRig(ctx context.Context, o options, dir string, reserve reserving) (_ *rig, err error) {
	r := &rig{stream: "OUTBOX-" + o.run, topic: o.topic()}
	if o.embedded {
		r.db, err = openSQLite(ctx, dir, r.topic, reserve)
	} else {
		r.db, err = openPostgres(ctx, o.postgres, "oncemill_"+o.run, r.topic, reserve)
	}
	if err != nil {
		return nil, err
	}
	stopServer := func() {}
	r.close = func(ctx context.Context) (err error) {
		if r.js != nil {
			if o.listen == "" {
				err = r.js.DeleteStream(ctx, r.stream)
			}
			r.js.Conn().Close()
		}
		stopServer()
		return errors.Join(err, r.db.close(ctx, o.listen == ""))
	}
	if o.embedded {
		if o.nats, stopServer, err = shop.StartNATS(dir); err != nil {
			return nil, err
		}
	}
	if r.js, err = shop.ConnectNATS(o.nats); err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	settings := jetstream.StreamConfig{Name: r.stream, Subjects: []string{r.topic}, MaxAge: 24 * time.Hour}
	if o.listen == "" {
		// The stream's own deduplication, by default two minutes, is shortened, so that the books show the copies that
		// relays make: here they come in tenths of a second, after an outage in hours.
		settings.Duplicates = 100 * time.Millisecond
	}
	if _, err = r.js.CreateOrUpdateStream(ctx, settings); err == nil {
		r.publisher, err = natsjs.NewPublisher(r.js, natsjs.PublisherConfig{})
	}
	if err != nil {
		return nil, errors.Join(shop.NoServer("nats", shop.Redacted(o.nats), err), r.close(ctx))
	}
	r.place = r.db.place
	return r, nil
}
