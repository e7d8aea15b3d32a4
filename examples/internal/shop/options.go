package shop

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Options are the flags of an example.
type Options struct {
	Embedded bool   // everything runs in this process
	Address  string // of the broker
	Redis    string
	Role     string // one of the Role constants
	Orders   int
	Seed     uint64
	Run      string // part of all names, so that runs keep out of each other's way
	Ledger   string // a file; empty: a temporary one
	Out      string // table or json
	Verbose  bool
}

// What a process does.
const (
	RoleProducer = "producer" // place orders, and end
	RoleConsumer = "consumer" // charge them until it is told to end
	RoleBoth     = "both"     // both, and close the books
)

// Temporary reports whether everything that the run makes at servers is to be removed at its end.
func (o Options) Temporary() bool { return o.Role == RoleBoth }

func (e Example) parse(args []string, stderr io.Writer) (Options, error) {
	var o Options
	flags := flag.NewFlagSet(e.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.Embedded, "embedded", false, "run everything in this process: nothing has to be installed")
	flags.StringVar(&o.Address, e.AddressFlag, e.Address, e.AddressUsage)
	flags.StringVar(&o.Redis, "redis", "redis://127.0.0.1:6379", "keep outcomes in the Redis at this `URL`")
	flags.StringVar(&o.Role, "role", RoleBoth, "producer, consumer or both")
	flags.IntVar(&o.Orders, "orders", 300, "how many orders to place, 10 to 100000")
	flags.Uint64Var(&o.Seed, "seed", 1, "draws orders, duplicates and failures")
	flags.StringVar(&o.Run, "run", "", "`name` of the run: a producer and a consumer with one name belong together (default: demo; both roles in one process have a new one)")
	flags.StringVar(&o.Ledger, "ledger", "", "`file` in which all processes of the run keep book; for both roles a new one (default: one for the run, in the directory for temporary files)")
	flags.StringVar(&o.Out, "out", "table", "print the books as table or json")
	flags.BoolVar(&o.Verbose, "v", false, "show what Oncemill logs")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var useless error
	flags.Visit(func(f *flag.Flag) {
		if o.Embedded && (f.Name == "redis" || f.Name == e.AddressFlag) {
			useless = errors.Join(useless, fmt.Errorf("-%s has no use with -embedded, which needs no servers", f.Name))
		}
		if o.Temporary() && f.Name == "run" { // its streams or topics are removed at the end, and Redis would know its orders
			useless = errors.Join(useless, errors.New("-run has no use without -role: a run of both roles is a new one"))
		}
	})
	o = o.withNames(e.Name)
	return o, errors.Join(useless, o.validate(), e.CheckAddress(o.Address))
}

// withNames fills in the defaults that depend on other flags.
func (o Options) withNames(example string) Options {
	switch {
	case o.Run == "" && o.Role == RoleBoth:
		o.Run = "r" + strconv.FormatInt(time.Now().UnixNano(), 36)
	case o.Run == "":
		o.Run = "demo"
	}
	if o.Ledger == "" && o.Role != RoleBoth {
		o.Ledger = filepath.Join(os.TempDir(), "oncemill-"+example+"-"+o.Run+".ledger")
	}
	return o
}

var runName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,29}$`)

func (o Options) validate() error {
	switch {
	case o.Role != RoleProducer && o.Role != RoleConsumer && o.Role != RoleBoth:
		return fmt.Errorf("-role is %q, want producer, consumer or both", o.Role)
	case o.Embedded && o.Role != RoleBoth:
		return fmt.Errorf("-role %s needs servers that others can reach: leave out -embedded", o.Role)
	case o.Orders < 10 || o.Orders > 100_000:
		return fmt.Errorf("-orders is %d, want 10 to 100000", o.Orders)
	case !runName.MatchString(o.Run):
		return fmt.Errorf("-run is %q, want up to 30 of a-z, 0-9 and -", o.Run)
	case o.Out != "table" && o.Out != "json":
		return fmt.Errorf("-out is %q, want table or json", o.Out)
	}
	return CheckURL("redis", o.Redis, "redis", "rediss", "unix")
}

// CheckURL returns an error that names the flag if its value is not a URL with one of the schemes. Passwords stay out of it.
func CheckURL(flagName, value string, schemes ...string) error {
	u, err := url.Parse(value)
	if err != nil {
		if parse, ok := errors.AsType[*url.Error](err); ok {
			err = parse.Err
		}
		return fmt.Errorf("-%s is not a URL: %w", flagName, err)
	}
	if slices.Contains(schemes, u.Scheme) && (u.Host != "" || u.Scheme == "unix") {
		return nil
	}
	return fmt.Errorf("-%s is %q, want a URL such as %s://127.0.0.1:PORT", flagName, u.Redacted(), schemes[0])
}

// Redacted is a URL without its password, to be shown.
func Redacted(value string) string {
	u, err := url.Parse(value)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}
