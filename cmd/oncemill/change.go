package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/dedupstore"
)

// A mending changes records: by their IDs, or all that a filter lets through.
type mending struct {
	filter
	verb        string
	change      dedupstore.Change
	every       bool // no filter is needed
	yes, dryRun bool
	rate        int
	why, audit  string
}

func (a *app) forget() *cobra.Command {
	m := &mending{verb: "forget", change: dedupstore.Forget{}}
	return a.mends(m, &cobra.Command{
		Use:   "forget [ID...]",
		Short: "Drop records: their messages run as new ones when they come again",
		Long: `forget drops the records of messages. If such a message is delivered again, it
runs as a first delivery, and its effect may happen again. Records that
somebody holds, and outcomes that are not published yet, are refused.`,
		Example: "  oncemill forget order-17 --group billing --handler charge --why \"ticket 4711\"\n" +
			"  oncemill forget --group billing --kind succeeded --before 720h --dry-run",
	})
}

func (a *app) rerun() *cobra.Command {
	m := &mending{verb: "rerun", change: dedupstore.Rerun{}}
	return a.mends(m, &cobra.Command{
		Use:   "rerun [ID...]",
		Short: "Let messages that failed run again when they are delivered next",
		Long: `rerun lets messages whose outcome is failed or unknown run again when they are
delivered next. It delivers nothing by itself: publish the message again, or
send its dead letter. Outside of an inbox the effect may happen twice: a run
may have made it before it failed.`,
		Example: "  oncemill rerun order-17 --group billing --handler charge\n" +
			"  oncemill rerun --kind failed --reason \"card service\" --since 2h",
	})
}

func (a *app) complete() *cobra.Command {
	m := &mending{verb: "complete"}
	var outcome, reason, result string
	cmd := a.mends(m, &cobra.Command{
		Use:   "complete ID... --outcome succeeded|failed",
		Short: "Say what became of messages whose outcome is unknown",
		Long: `complete decides outcomes that are unknown, once you know whether the effect
happened. Duplicates get that outcome from then on.`,
		Example: "  oncemill complete order-17 --group billing --handler charge --outcome succeeded",
		PreRunE: func(*cobra.Command, []string) error {
			kind := dedupstore.Kind(outcome)
			if kind != dedupstore.Succeeded && kind != dedupstore.Failed {
				return usagef("--outcome is %q, want succeeded or failed", outcome)
			}
			o := dedupstore.Outcome{Kind: kind, Reason: reason}
			if result != "" {
				o.Result = []byte(result)
			}
			m.change = dedupstore.Complete{Outcome: o}
			return nil
		},
	})
	cmd.Flags().StringVar(&outcome, "outcome", "", "succeeded or failed")
	cmd.Flags().StringVar(&reason, "because", "", "the reason of a failure, for duplicates to get")
	cmd.Flags().StringVar(&result, "result", "", "the result of a success, for duplicates to get")
	return cmd
}

func (a *app) mends(m *mending, cmd *cobra.Command) *cobra.Command {
	cmd.GroupID = "mend"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := m.read(time.Now()); err != nil {
			return err
		}
		switch {
		case m.rate < 1:
			return usagef("--rate is %d, want at least 1", m.rate)
		case len(args) == 0 && m.empty() && !m.every:
			return usagef("name IDs or a filter, or say --all; see oncemill %s --help", m.verb)
		}
		return a.mend(cmd.Context(), m, args)
	}
	m.all(cmd.Flags())
	cmd.Flags().BoolVar(&m.every, "all", false, "every record, without a filter")
	cmd.Flags().BoolVar(&m.dryRun, "dry-run", false, "show what would be done, and change nothing")
	cmd.Flags().BoolVarP(&m.yes, "yes", "y", false, "do not ask")
	cmd.Flags().IntVar(&m.rate, "rate", 100, "change so many records a second at most")
	cmd.Flags().StringVar(&m.why, "why", "", "the reason, for the audit log")
	cmd.Flags().StringVar(&m.audit, "audit-log", "", "append a line for each change to this file; else to stderr")
	return cmd
}

// mend previews, asks, and changes one record after the other.
func (a *app) mend(ctx context.Context, m *mending, ids []string) error {
	store, err := a.inspector(ctx)
	if err != nil {
		return err
	}
	records, err := a.chosen(ctx, store, m, ids)
	if err != nil {
		return err
	}
	a.preview(m, records)
	switch {
	case len(records) == 0 || m.dryRun:
		return nil
	case !m.yes:
		if err := a.confirm(ctx, m.verb, len(records)); err != nil {
			return err
		}
	}
	audit, done, err := a.auditor(m)
	if err != nil {
		return err
	}
	return errors.Join(a.changes(ctx, store, m, records, audit), done())
}

// chosen are the records that are meant.
func (a *app) chosen(ctx context.Context, store dedupstore.Inspector, m *mending, ids []string) ([]dedupstore.Record, error) {
	found := map[dedupstore.Key]dedupstore.Record{}
	if len(ids) == 0 {
		err := a.each(ctx, store, m.Filter, func(r *dedupstore.Record) bool {
			found[r.Key] = *r
			return true
		})
		return sorted(found), err
	}
	for _, id := range ids {
		of := m.Filter
		of.ID = id
		records, err := a.find(ctx, store, of)
		if err != nil {
			return nil, err
		}
		for i := range records {
			if records[i].State == dedupstore.Absent {
				return nil, fmt.Errorf("message %q has no record in the scopes that were looked at", safe(id, 100))
			}
			if of.Matches(&records[i]) {
				found[records[i].Key] = records[i]
			}
		}
	}
	return sorted(found), nil
}

// preview says what is about to be changed.
func (a *app) preview(m *mending, records []dedupstore.Record) {
	counts := map[string]int{}
	for i := range records {
		r := &records[i]
		counts[scopeOf(r.Key)+", "+stateOf(r.State, r.Outcome.Kind)]++
	}
	fmt.Fprintf(a.log, "%s %s:\n", m.verb, plural(len(records), "record"))
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(a.log, "  %6d  %s\n", counts[name], name)
	}
}

func (a *app) confirm(ctx context.Context, verb string, n int) error {
	fmt.Fprintf(a.log, "Type %q to %s %s: ", "yes", verb, plural(n, "record"))
	answer := make(chan string, 1)
	go func() { // ends with the process if nobody answers
		line, _ := bufio.NewReader(a.in).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case text := <-answer:
		if text == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return errors.New("nothing was changed: it was not confirmed; --yes does not ask")
}

// auditor returns where each change is told.
func (a *app) auditor(m *mending) (log *slog.Logger, done func() error, err error) {
	to, done := a.log, func() error { return nil }
	if m.audit != "" {
		f, err := os.OpenFile(m.audit, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("audit log: %w", err)
		}
		to, done = f, f.Close
	}
	who := "unknown"
	if u, err := user.Current(); err == nil {
		who = u.Username
	}
	host, _ := os.Hostname()
	return slog.New(slog.NewJSONHandler(to, nil)).With("who", who+"@"+host, "why", m.why, "action", m.verb), done, nil
}

func (a *app) changes(
	ctx context.Context, store dedupstore.Inspector, m *mending, records []dedupstore.Record, audit *slog.Logger,
) error {
	progress := a.progress("records")
	defer progress.end()
	pause := time.NewTicker(time.Second / time.Duration(m.rate))
	defer pause.Stop()
	changed, refused := 0, 0
	var first error
	for i := range records {
		if i > 0 {
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
		}
		err := store.Change(ctx, records[i], m.change)
		line := audit.With("key", records[i].Key.String(), "fence", records[i].Fence, "state", string(records[i].State))
		var no *dedupstore.RefusedError
		switch {
		case err == nil:
			changed++
			line.Info("changed")
		case errors.As(err, &no):
			refused++
			line.Warn("refused", "error", err.Error())
			first = cmp.Or(first, err)
		default:
			line.Error("failed", "error", err.Error())
			return fmt.Errorf("%d of %s changed: %w", changed, plural(len(records), "record"), err)
		}
		progress.add(1, len(records))
	}
	fmt.Fprintf(a.log, "%s changed, %d refused\n", plural(changed, "record"), refused)
	if first != nil {
		return fmt.Errorf("%s refused, the first: %w", plural(refused, "record"), first)
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
