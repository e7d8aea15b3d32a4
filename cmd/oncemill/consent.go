package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/internal/operate"
)

// A consent is how a change is shown, confirmed and told. Its fields but the verb are flags.
type consent struct {
	verb        operate.Action
	every       bool // no filter is needed
	yes, dryRun bool
	rate        int
	why, audit  string
}

// flags has the flags of a change of things, such as records.
func (c *consent) flags(flags *pflag.FlagSet, things string) {
	flags.BoolVar(&c.every, "all", false, "all "+things+", without a filter")
	flags.BoolVar(&c.dryRun, "dry-run", false, "show what would be done, and change nothing")
	flags.BoolVarP(&c.yes, "yes", "y", false, "do not ask")
	flags.IntVar(&c.rate, "rate", 100, "change so many "+things+" a second at most")
	flags.StringVar(&c.why, "why", "", "the reason, for the audit log")
	flags.StringVar(&c.audit, "audit-log", "", "append a line for each change to this file; else to stderr")
}

// check refuses a rate of none, and a change of everything by a slip.
func (c *consent) check(command string, named bool) error {
	switch {
	case c.rate < 1:
		return usagef("--rate is %d, want at least 1", c.rate)
	case !named && !c.every:
		return usagef("name IDs or a filter, or say --all; see oncemill %s --help", command)
	}
	return nil
}

// agreed shows how many of each kind would change, and asks. It returns false if nothing may change.
func (a *app) agreed(ctx context.Context, c *consent, thing string, counts map[string]int) (bool, error) {
	n := 0
	for _, some := range counts {
		n += some
	}
	fmt.Fprintf(a.log, "%s %s:\n", c.verb, plural(n, thing))
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(a.log, "  %6d  %s\n", counts[name], name)
	}
	if n == 0 || c.dryRun {
		return false, nil
	}
	if c.yes {
		return true, nil
	}
	fmt.Fprintf(a.log, "Type %q to %s %s: ", "yes", c.verb, plural(n, thing))
	answer := make(chan string, 1)
	go func() { // ends with the process if nobody answers
		line, _ := bufio.NewReader(a.in).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case text := <-answer:
		if text == "yes" {
			return true, nil
		}
	case <-ctx.Done():
	}
	return false, errors.New("nothing was changed: it was not confirmed; --yes does not ask")
}

// auditor returns where each change is told, with its action.
func (a *app) auditor(c *consent) (log *slog.Logger, done func() error, err error) {
	to, done, err := a.auditLog(c.audit)
	if err != nil {
		return nil, nil, err
	}
	host, _ := os.Hostname()
	return slog.New(slog.NewJSONHandler(to, nil)).With("who", me()+"@"+host, "why", c.why), done, nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
