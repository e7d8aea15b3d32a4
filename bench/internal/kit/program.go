package kit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Options are the flags of every program.
type Options struct {
	Rounds  int           // how often everything is measured, at least 1
	Cell    time.Duration // how long one measurement lasts, unless it counts records
	Records int           // how many records a full server holds, at least 1
	Scale   float64       // how many messages where they are counted, 1 being the usual number
	Only    string        // a part of the names of the experiments to run, or of their variants; empty: all
	Stores  string        // the subjects of "records" to measure, with commas; empty: all
	Quick   bool          // everything once, small and short: shows that the program works, and nothing else

	// CPUProfile and MemProfile are files for profiles of the part of a variant that is measured, of its last round. They
	// need Only to leave one variant. Empty: none.
	CPUProfile, MemProfile string
}

// An Experiment is a part of a program that can run alone.
type Experiment struct {
	Name     string
	Variants []string // the names of variants that Options.Only may choose one by one; nil: none
	Run      func(ctx context.Context, b *Bench) error
}

// chosen tells whether a choice is of the whole experiment, or of some of its variants.
func (e Experiment) chosen(only string) (whole, part bool) {
	return strings.Contains(e.Name, only), slices.ContainsFunc(e.Variants, func(v string) bool { return strings.Contains(v, only) })
}

// Main runs the experiments of a program as its command line says, and exits.
func Main(experiments ...Experiment) {
	ServeIfAsked()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := Run(ctx, os.Args[1:], os.Stdout, os.Stderr, experiments...)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Run is Main with arguments and without an exit. It ends when the context does.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer, experiments ...Experiment) error {
	o, err := parse(args, stderr, names(experiments))
	if err != nil {
		return err
	}
	if o.MemProfile != "" {
		defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
		runtime.MemProfileRate = 0 // until something is measured
	}
	b := &Bench{Options: o, tables: stdout, progress: stderr}
	ran := 0
	for _, e := range experiments {
		whole, part := e.chosen(o.Only)
		if !whole && !part {
			continue
		}
		ran++
		b.some = !whole
		b.Progress("== %s", e.Name)
		if err := e.Run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	if ran == 0 {
		return fmt.Errorf("-only %q: there are %s", o.Only, names(experiments))
	}
	_, err = fmt.Fprintf(stdout, "%s\n%s", b.aims.markdown(), strings.Join(b.results, ""))
	return err
}

func names(experiments []Experiment) string {
	list := make([]string, len(experiments))
	for i, e := range experiments {
		list[i] = strings.Join(append([]string{e.Name}, e.Variants...), ", ")
	}
	return strings.Join(list, ", ")
}

func parse(args []string, stderr io.Writer, experiments string) (Options, error) {
	var o Options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.Rounds, "rounds", 5, "how often everything is measured; ratios need at least 3")
	f.DurationVar(&o.Cell, "cell", time.Second, "how long one measurement lasts")
	f.IntVar(&o.Records, "records", 1_000_000, "how many records a full server holds")
	f.Float64Var(&o.Scale, "n", 1, "how many messages where they are counted, 1 being the usual number")
	f.StringVar(&o.Only, "only", "", "only experiments or variants with this in their names, of "+experiments)
	f.StringVar(&o.Stores, "stores", "", "for the experiment records: only these stores, such as redis,mysql")
	f.StringVar(&o.CPUProfile, "cpuprofile", "", "write a CPU profile of what is measured to this file; needs -only that leaves one variant")
	f.StringVar(&o.MemProfile, "memprofile", "", "the same for allocations; it slows the variant down")
	f.BoolVar(&o.Quick, "quick", false, "1 round, 50 ms, 4000 records, -n 0.02: shows that the program works, and nothing else")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.Quick {
		o.Rounds, o.Cell, o.Records, o.Scale = 1, 50*time.Millisecond, 4000, .02
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.Rounds < 1:
		return o, fmt.Errorf("-rounds is %d, want at least 1", o.Rounds)
	case o.Cell < time.Millisecond:
		return o, fmt.Errorf("-cell is %v, want at least 1ms", o.Cell)
	case o.Records < 1000:
		return o, fmt.Errorf("-records is %d, want at least 1000", o.Records)
	case !(o.Scale > 0 && o.Scale <= 1000):
		return o, fmt.Errorf("-n is %v, want more than 0, and at most 1000", o.Scale)
	}
	return o, nil
}
