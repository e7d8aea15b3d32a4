package kit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Options are the flags of every program.
type Options struct {
	Rounds  int           // how often everything is measured, at least 1
	Cell    time.Duration // how long one measurement lasts, unless it counts records
	Records int           // how many records a full server holds, at least 1
	Only    string        // a part of the names of the experiments to run; empty: all
	Quick   bool          // everything once, small and short: shows that the program works, and nothing else
}

// An Experiment is a part of a program that can run alone.
type Experiment struct {
	Name string
	Run  func(ctx context.Context, b *Bench) error
}

// Main runs the experiments of a program as its command line says, and exits.
func Main(experiments ...Experiment) {
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
	b := &Bench{Options: o, tables: stdout, progress: stderr}
	ran := 0
	for _, e := range experiments {
		if !strings.Contains(e.Name, o.Only) {
			continue
		}
		ran++
		b.Progress("== %s", e.Name)
		if err := e.Run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	if ran == 0 {
		return fmt.Errorf("-only %q: there are %s", o.Only, names(experiments))
	}
	_, err = fmt.Fprintf(stdout, "\n%s", strings.Join(b.results, ""))
	return err
}

func names(experiments []Experiment) string {
	list := make([]string, len(experiments))
	for i, e := range experiments {
		list[i] = e.Name
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
	f.StringVar(&o.Only, "only", "", "only experiments with this in their names, of "+experiments)
	f.BoolVar(&o.Quick, "quick", false, "1 round, 50 ms, 4000 records: shows that the program works, and nothing else")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.Quick {
		o.Rounds, o.Cell, o.Records = 1, 50*time.Millisecond, 4000
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
	}
	return o, nil
}
