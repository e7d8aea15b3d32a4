// Command oncemill answers what happened to a message, and mends what failed. See its help, and docs/command.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit statuses.
const (
	exitError = 1 // something went wrong
	exitUsage = 2 // the command line is wrong
	exitFound = 3 // what was looked for was found, with --check
	exitNone  = 4 // nobody knows the message that was to be explained
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// errFound ends a command that was told to find something, and did.
var errFound = errors.New("found")

// errNone ends a command that found nothing of a message.
var errNone = errors.New("nothing is known of it")

// A usageError says what is wrong with the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run runs the command and returns its exit status.
func run(ctx context.Context, args []string, in io.Reader, out, log io.Writer) int {
	a := &app{in: in, out: out, log: log}
	root := a.command()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(log)
	err := root.ExecuteContext(ctx)
	a.close()
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFound):
		return exitFound
	case errors.Is(err, errNone):
		return exitNone
	case ctx.Err() != nil: // what was done until then is in the error
		fmt.Fprintf(log, "oncemill: interrupted: %s\n", oneLine(err))
		return exitError
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown "):
		fmt.Fprintf(log, "oncemill: %s\n", oneLine(err))
		return exitUsage
	default:
		fmt.Fprintf(log, "oncemill: %s\n", oneLine(err))
		return exitError
	}
}

// oneLine is the text of an error, which drivers may have written in several lines, and servers with bytes of others.
func oneLine(err error) string { return safe(strings.Join(strings.Fields(err.Error()), " "), 10_000) }

// An app is one run of the command.
type app struct {
	in       io.Reader
	out, log io.Writer
	settings settings
	closers  []func()
	asIs     bool         // databases are opened without changing how they are set
	logger   *slog.Logger // nil: nothing is logged
}

func (a *app) close() {
	for _, c := range a.closers {
		c()
	}
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:     "oncemill",
		Version: version(),
		Short:   "What happened to this message?",
		Long: `oncemill looks into the records of Oncemill: it explains what happened to a
message, lists and counts records, and mends what failed.

It finds the servers by flags, by environment (ONCEMILL_STORE, ONCEMILL_OUTBOX,
ONCEMILL_NATS, ONCEMILL_KAFKA) or by a context of the file "oncemill.yaml" in
the user's config folder:

  current: prod
  contexts:
    prod:
      store: redis://127.0.0.1:6379
      outbox: postgres://app@127.0.0.1/shop
      nats: nats://127.0.0.1:4222
      trace: https://traces.example/trace/{trace}

With --context the environment names no servers.

Other users of a machine see the flags of a process. Keep an address with a
password in a file or a variable: --store @FILE reads it, as do the others.

Exit status: 0 fine, 1 error, 2 wrong usage, 3 found what --check or doctor
looked for, 4 nothing is known of what explain was asked about.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
				return nil // a shell asks what may follow, and says nothing yet
			}
			if err := said(cmd.Flags(), args); err != nil {
				return err
			}
			if a.settings.timeout <= 0 {
				return usagef("--timeout is %v, want more than 0", a.settings.timeout)
			}
			return a.settings.load()
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.SetUsageTemplate(globals.ReplaceAllString(
		strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"),
		"\n\nFlags of servers, --output and --timeout: see "+`"oncemill --help".{{end}}`))
	a.settings.flags(root.PersistentFlags())
	root.AddGroup(&cobra.Group{ID: "look", Title: "Look:"}, &cobra.Group{ID: "mend", Title: "Mend:"},
		&cobra.Group{ID: "run", Title: "Run:"})
	root.AddCommand(a.explain(), a.list(), a.stats(), a.outbox(), a.forget(), a.rerun(), a.complete(),
		a.migrate(), a.doctor(), a.deadLetters(), a.duplicates(), a.lag(), a.auditLogs(), a.relay(), a.console())
	a.completes(root)
	return root
}

// globals is what the usage of a command says of the flags that all have.
var globals = regexp.MustCompile(`(?s)\n\nGlobal Flags:.*?{{end}}`)

// flagWords are what flags take, by the command's path, or without one.
var flagWords = map[string][]string{
	"output": {"table", "json", "jsonl"}, "kind": {"succeeded", "failed", "unknown"},
	"state":                    {"running", "retryable", "publishing", "done"},
	"oncemill outbox ls state": {"pending", "delayed", "leased", "dead", "published"},
	"action": {
		"forget", "rerun", "complete", "archive", "restore", "redrive", "requeue", "discard", "replay",
	},
	"outcome":                   {"failed", "unknown", "mismatch", "rejected"},
	"oncemill complete outcome": {"succeeded", "failed"},
}

// completes tells shells which words flags take.
func (a *app) completes(cmd *cobra.Command) {
	complete := func(f *pflag.Flag) {
		all := flagWords[cmd.CommandPath()+" "+f.Name]
		if all == nil {
			all = flagWords[f.Name]
		}
		if all != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	cmd.LocalFlags().VisitAll(complete)
	for _, sub := range cmd.Commands() {
		a.completes(sub)
	}
	if cmd.HasParent() {
		return
	}
	_ = cmd.RegisterFlagCompletionFunc("context",
		func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			f, _, _ := a.settings.file()
			return slices.Sorted(maps.Keys(f.Contexts)), cobra.ShellCompDirectiveNoFileComp
		})
}

// version is that of the module, which go install and builds of a tag know.
func version() string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return "(devel)"
	}
	return cmp.Or(info.Main.Version, "(devel)")
}

// said refuses what is given and empty, as by a variable of a shell that is not set: an ID, or a filter, would let
// everything through, and another server would be taken.
func said(flags *pflag.FlagSet, args []string) (err error) {
	if slices.Contains(args, "") {
		return usagef("an argument is empty")
	}
	flags.Visit(func(f *pflag.Flag) {
		if text := f.Value.String(); text == "" || text == "[]" {
			err = usagef("--%s is empty", f.Name)
		}
	})
	return err
}

// arguments makes an error of usage of a wrong number of arguments.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%s: %w; see %s --help", cmd.Name(), err, cmd.CommandPath())
		}
		return nil
	}
}
