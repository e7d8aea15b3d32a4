package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// options are the flags.
type options struct {
	embedded bool
	postgres string
	broker   string // nats or kafka
	nats     string
	brokers  string
	listen   string // empty: play the load
	orders   int
	seed     uint64
	out      string // table or json
	verbose  bool
	run      string // part of all names, so that runs keep out of each other's way
}

// temporary reports whether everything that the run makes at servers is to be removed at its end.
func (o options) temporary() bool { return o.listen == "" }

// topic is where events go: a name of this example alone, so that others can use the same servers.
func (o options) topic() string { return "outbox." + o.run + ".orders" }

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("outbox", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.embedded, "embedded", false, "run everything in this process: nothing has to be installed, and SQLite is used instead of PostgreSQL")
	flags.StringVar(&o.postgres, "postgres", "postgres://postgres@127.0.0.1:5432/shop", "keep orders in the PostgreSQL at this `URL`")
	flags.StringVar(&o.broker, "broker", "nats", "publish to nats or kafka")
	flags.StringVar(&o.nats, "nats", "nats://127.0.0.1:4222", "use the NATS JetStream server at this `URL`")
	flags.StringVar(&o.brokers, "brokers", "127.0.0.1:9092", "use the Kafka brokers at these `addresses`, separated by commas")
	flags.StringVar(&o.listen, "listen", "", "take orders at this `address` until interrupted, instead of playing the load")
	flags.IntVar(&o.orders, "orders", 300, "how many orders the load places, 10 to 100000")
	flags.Uint64Var(&o.seed, "seed", 1, "draws orders, repetitions and failures")
	flags.StringVar(&o.out, "out", "table", "print the books as table or json")
	flags.BoolVar(&o.verbose, "v", false, "show what Oncemill logs")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	o.run = "demo"
	if o.temporary() {
		o.run = "r" + strconv.FormatInt(time.Now().UnixNano(), 36)
	}
	var useless []error
	flags.Visit(func(f *flag.Flag) { useless = append(useless, o.useless(f.Name)) })
	return o, errors.Join(errors.Join(useless...), o.validate())
}

// useless returns an error if a flag that was given does nothing beside the others.
func (o options) useless(name string) error {
	servers := name == "postgres" || name == "nats" || name == "brokers"
	load := name == "orders" || name == "seed" || name == "out"
	switch {
	case o.embedded && servers:
		return fmt.Errorf("-%s has no use with -embedded, which needs no servers", name)
	case name == "nats" && o.broker == "kafka", name == "brokers" && o.broker == "nats":
		return fmt.Errorf("-%s has no use with -broker %s", name, o.broker)
	case o.listen != "" && load:
		return fmt.Errorf("-%s has no use with -listen, which plays no load", name)
	}
	return nil
}

func (o options) validate() error {
	switch {
	case o.broker != "nats" && o.broker != "kafka":
		return fmt.Errorf("-broker is %q, want nats or kafka", o.broker)
	case o.orders < 10 || o.orders > 100_000:
		return fmt.Errorf("-orders is %d, want 10 to 100000", o.orders)
	case o.out != "table" && o.out != "json":
		return fmt.Errorf("-out is %q, want table or json", o.out)
	}
	if o.listen != "" {
		if err := checkAddress("listen", o.listen); err != nil {
			return err
		}
	}
	for address := range strings.SplitSeq(o.brokers, ",") {
		if err := checkAddress("brokers", address); err != nil {
			return err
		}
	}
	return errors.Join(checkPostgres(o.postgres), shop.CheckURL("nats", o.nats, "nats", "tls"))
}

func checkAddress(flagName, address string) error {
	if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
		return fmt.Errorf("-%s has %q, want an address such as 127.0.0.1:9092", flagName, address)
	}
	return nil
}

// checkPostgres refuses passwords where errors would show them.
func checkPostgres(value string) error {
	if err := shop.CheckURL("postgres", value, "postgres", "postgresql"); err != nil {
		return err
	}
	if u, err := url.Parse(value); err != nil || u.Query().Has("password") {
		return errors.New("-postgres has a password in its query, want it before the @, or in PGPASSWORD")
	}
	return nil
}
