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
//
// It removes what it has made there.
//
// You would write service.go and orders.go yourself. Exit status: 0 if the books balance, 1 if they do not or something
// broke, 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/examples/internal/observe"
	"github.com/oncemill/oncemill/examples/internal/postgres"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func main() { os.Exit(program{}.main(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// A program is the example. Tests break something in it, and get its books.
type program struct {
	tamper func(*service)
	closed func(Books)
}

// options are the flags.
type options struct {
	embedded bool
	postgres string
	nats     string
	orders   int
}

func (p program) main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("outbox", flag.ContinueOnError)
	flags.BoolVar(&o.embedded, "embedded", false, "install nothing: use SQLite, not PostgreSQL, and a NATS in here")
	flags.StringVar(&o.postgres, "postgres", "postgres://postgres@127.0.0.1:5432/shop", "keep orders at this `URL`")
	flags.StringVar(&o.nats, "nats", "nats://127.0.0.1:4222", "publish to the NATS JetStream server at this `URL`")
	flags.IntVar(&o.orders, "orders", 300, "how many orders are placed, 10 to 100000")
	return shop.Main(ctx, flags, args, stderr, func(ctx context.Context, dir string) (bool, error) {
		err := shop.OnlyServers(flags, o.embedded, "postgres", "nats")
		if err := errors.Join(err, shop.CheckRange("orders", o.orders, 10, 100_000)); err != nil {
			return false, err
		}
		return p.run(ctx, o, dir, stdout, stderr)
	})
}

// run plays, and reports whether the books balance. Its messages to people go to out.
func (p program) run(ctx context.Context, o options, dir string, stdout, out io.Writer) (balanced bool, err error) {
	run := shop.RunName() // names of its own: it keeps out of the way of other runs
	topic, stream := "outbox."+run+".orders", "OUTBOX-"+run
	stop, err := observe.Start(ctx, "outbox")
	if err != nil {
		return false, err
	}
	defer stop(ctx)

	// Orders and their outbox are in one database.
	db := &database{topic: topic}
	if o.embedded {
		shop.Say(out, "-embedded: orders are kept in SQLITE INSTEAD OF POSTGRESQL, and NATS runs in this process\n")
		o.nats = ""
		db.Database, err = shop.OpenSQLite(ctx, filepath.Join(dir, "shop.db"), table)
	} else {
		db.Database, err = postgres.Open(ctx, o.postgres, "oncemill_"+run, table)
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	defer shop.Finish(ctx, &err, db.Remove)

	// The events go to a stream.
	js, closeNATS, err := shop.OpenNATS(o.nats, dir)
	if err != nil {
		return false, err
	}
	defer closeNATS()
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: stream, Subjects: []string{topic}, MaxAge: 24 * time.Hour,
		// The stream's own deduplication lasts two minutes by default. Here it is shorter, so that the books show the
		// copies that relays make: here they come in tenths of a second, after an outage in hours.
		Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		return false, shop.NoServer("nats", shop.Redacted(o.nats), err)
	}
	publisher, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		return false, err
	}

	// The service writes both at once.
	s := &service{db: db, place: db.place, publisher: publisher}
	if p.tamper != nil {
		p.tamper(s)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return false, err
	}
	defer shop.Finish(ctx, &err, func(ctx context.Context) error { return js.DeleteStream(ctx, stream) })
	b, err := play(ctx, s, l, o.orders, out)
	if err != nil {
		return false, err
	}
	events, err := shop.Messages(ctx, js, stream, topic)
	if err != nil {
		return false, fmt.Errorf("read the events: %w", err)
	}
	b.close(events)
	if p.closed != nil {
		p.closed(b)
	}
	return b.Balance(), b.print(stdout)
}
