package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// The parts of the example.
const (
	roleService = "service"
	roleRelay   = "relay"
	roleCharge  = "charge"
	roleNotify  = "notify"
	roleAPI     = "api"
)

var allRoles = []string{roleService, roleRelay, roleCharge, roleNotify, roleAPI}

// options are the flags.
type options struct {
	embedded bool
	postgres string
	sqlite   string // a file; empty: PostgreSQL
	nats     string
	redis    string // empty: notify keeps its outcomes in the database
	roles    []string
	listen   string
	api      string
	journal  string // of the stub
	lease    time.Duration
	lose     int // every so many acknowledgements one is lost; 0: none
	run      string
	payments int
	kills    int
	seed     uint64
	keep     bool
	out      string // table or json
	verbose  bool
	child    bool // of a process that made tables and streams before
}

// asChild is the environment variable that a process of the example has if another one started it: it ends when its
// standard input does, so also if the other one is killed.
const asChild = "ONCEMILL_PAYMENTS_CHILD"

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{child: os.Getenv(asChild) != ""}
	var role string
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.embedded, "embedded", false, "nothing has to be installed: SQLite is used instead of PostgreSQL, and NATS runs in this process")
	flags.StringVar(&o.postgres, "postgres", "postgres://postgres@127.0.0.1:5432/shop", "keep everything in the PostgreSQL at this `URL`")
	flags.StringVar(&o.sqlite, "sqlite", "", "keep everything in this SQLite `file`, instead of PostgreSQL")
	flags.StringVar(&o.nats, "nats", "nats://127.0.0.1:4222", "use the NATS JetStream server at this `URL`")
	flags.StringVar(&o.redis, "redis", "redis://127.0.0.1:6379", "notify keeps outcomes in the Redis at this `URL`; empty: in the database")
	flags.StringVar(&role, "role", "", "be these parts of the example: service, relay, charge, notify, api, separated by commas (default: start all of them, and play)")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:0", "service or api: take requests at this `address`")
	flags.StringVar(&o.api, "api", "http://127.0.0.1:8081", "notify: call the API at this `URL`")
	flags.StringVar(&o.journal, "journal", "payments-api.journal", "api: keep idempotency keys in this `file`")
	flags.DurationVar(&o.lease, "lease", 30*time.Second, "how long what a consumer held when it crashed stays untouched, 500ms to 10m; when playing 1s, unless given")
	flags.IntVar(&o.lose, "lose", 0, "lose one of so many acknowledgements and answers; 0: none; when playing 10, unless given")
	flags.StringVar(&o.run, "run", "", "`name` of the run, part of all names at servers (default: demo; when playing, a new one)")
	flags.IntVar(&o.payments, "payments", 300, "how many payments are sent, 20 to 100000")
	flags.IntVar(&o.kills, "kills", 6, "how many consumer processes are killed meanwhile, 0 to 10000")
	flags.Uint64Var(&o.seed, "seed", 1, "draws payments, duplicates and kills")
	flags.BoolVar(&o.keep, "keep", false, "leave at the servers what the run has made there")
	flags.StringVar(&o.out, "out", "table", "print the books as table or json")
	flags.BoolVar(&o.verbose, "v", false, "show what Oncemill logs")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if role != "" {
		o.roles = strings.Split(role, ",")
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	o = o.withDefaults(given)
	return o, errors.Join(o.useless(given), o.validate())
}

// withDefaults fills in the defaults that depend on other flags.
func (o options) withDefaults(given map[string]bool) options {
	plays := o.roles == nil
	if plays && !given["lease"] {
		o.lease = time.Second
	}
	if plays && !given["lose"] {
		o.lose = 10
	}
	if o.embedded {
		o.redis = ""
	}
	switch {
	case o.run != "":
	case plays:
		o.run = "r" + strconv.FormatInt(time.Now().UnixNano(), 36)
	default:
		o.run = "demo"
	}
	return o
}

// useless returns an error if a flag that was given does nothing beside the others.
func (o options) useless(given map[string]bool) error {
	var errs []error
	for _, name := range []string{"postgres", "sqlite", "nats", "redis"} {
		if o.embedded && given[name] {
			errs = append(errs, fmt.Errorf("-%s has no use with -embedded, which needs no servers", name))
		}
	}
	if o.embedded && given["keep"] {
		errs = append(errs, errors.New("-keep has no use with -embedded: everything is in a temporary folder, which is removed"))
	}
	if given["postgres"] && o.sqlite != "" {
		errs = append(errs, errors.New("-postgres has no use with -sqlite"))
	}
	plays := o.roles == nil
	for _, name := range []string{"payments", "kills", "seed", "keep", "out"} {
		if !plays && given[name] {
			errs = append(errs, fmt.Errorf("-%s has no use with -role: nothing is played", name))
		}
	}
	for _, name := range []string{"listen", "api", "journal"} {
		if plays && given[name] {
			errs = append(errs, fmt.Errorf("-%s has no use without -role", name))
		}
	}
	return errors.Join(errs...)
}

var runName = regexp.MustCompile(`^[a-z0-9][a-z0-9_]{0,29}$`)

func (o options) validate() error {
	for _, role := range o.roles {
		if !slices.Contains(allRoles, role) {
			return fmt.Errorf("-role has %q, want some of %s", role, strings.Join(allRoles, ", "))
		}
	}
	switch {
	case o.embedded && o.roles != nil:
		return errors.New("-role needs servers that others can reach: leave out -embedded")
	case slices.Contains(o.roles, roleService) && slices.Contains(o.roles, roleAPI):
		return errors.New("-role has service and api, which listen at one address: use two processes")
	case o.payments < 20 || o.payments > 100_000:
		return fmt.Errorf("-payments is %d, want 20 to 100000", o.payments)
	case o.kills < 0 || o.kills > 10_000:
		return fmt.Errorf("-kills is %d, want 0 to 10000", o.kills)
	case o.lose < 0 || o.lose == 1:
		return fmt.Errorf("-lose is %d, want 0, or at least 2: without any acknowledgement there is no end", o.lose)
	case o.lease < 500*time.Millisecond || o.lease > 10*time.Minute:
		return fmt.Errorf("-lease is %v, want 500ms to 10m", o.lease)
	case !runName.MatchString(o.run):
		return fmt.Errorf("-run is %q, want up to 30 of a-z, 0-9 and _", o.run)
	case o.out != "table" && o.out != "json":
		return fmt.Errorf("-out is %q, want table or json", o.out)
	}
	if host, port, err := net.SplitHostPort(o.listen); err != nil || host == "" || port == "" {
		return fmt.Errorf("-listen is %q, want an address such as 127.0.0.1:8080", o.listen)
	}
	return o.validateURLs()
}

func (o options) validateURLs() error {
	err := errors.Join(
		shop.CheckURL("nats", o.nats, "nats", "tls"),
		shop.CheckURL("api", o.api, "http", "https"),
		checkPostgres(o.postgres),
	)
	if o.redis != "" {
		err = errors.Join(err, shop.CheckURL("redis", o.redis, "redis", "rediss", "unix"))
	}
	return err
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

// arguments are those of a process that does some of the work of this run.
func (o options) arguments(roles ...string) []string {
	args := []string{"-role", strings.Join(roles, ","), "-run", o.run, "-nats", o.nats, "-redis", o.redis,
		"-lease", o.lease.String(), "-lose", strconv.Itoa(o.lose), "-api", o.api, "-journal", o.journal}
	if o.sqlite != "" {
		args = append(args, "-sqlite", o.sqlite)
	} else {
		args = append(args, "-postgres", o.postgres)
	}
	if o.verbose {
		args = append(args, "-v")
	}
	return args
}
