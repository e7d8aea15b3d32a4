package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/operate"
)

// A mending changes records: by their IDs, or all that a filter lets through.
type mending struct {
	filter
	consent
	change dedupstore.Change
	steps  bool // steps of the messages are forgotten, too
}

// takes reports whether a record is meant by itself. A step goes with its message, unless its name is given.
func (m *mending) takes(r *dedupstore.Record) bool {
	return m.Handler != "" || !ids.IsOfStep(r.Key.Handler)
}

func (a *app) forget() *cobra.Command {
	m := &mending{consent: consent{verb: "forget"}, change: dedupstore.Forget{}, steps: true}
	return a.mends(m, &cobra.Command{
		Use:   "forget [ID...]",
		Short: "Drop records: their messages run as new ones when they come again",
		Long: `forget drops the records of messages. If such a message is delivered again, it
runs as a first delivery, and its effect may happen again. The records of its
steps are dropped, too, so that all of them are done again. Records that
somebody holds, and outcomes that are not published yet, are refused.`,
		Example: "  oncemill forget order-17 --group billing --handler charge --why \"ticket 4711\"\n" +
			"  oncemill forget --group billing --kind succeeded --before 720h --dry-run",
	})
}

func (a *app) rerun() *cobra.Command {
	m := &mending{consent: consent{verb: "rerun"}, change: dedupstore.Rerun{}}
	cmd := a.mends(m, &cobra.Command{
		Use:   "rerun [ID...]",
		Short: "Let messages that failed run again when they are delivered next",
		Long: `rerun lets messages whose outcome is failed or unknown run again when they are
delivered next. It delivers nothing by itself: publish the message again, or
send its dead letter. Outside of an inbox the effect may happen twice: a run
may have made it before it failed.

Steps that succeeded are kept, and not done again. With --steps all steps of
the messages are forgotten. A step whose outcome is unknown makes its message
unknown again: decide about the step first, by complete or rerun with
--handler HANDLER/step=NAME.`,
		Example: "  oncemill rerun order-17 --group billing --handler charge\n" +
			"  oncemill rerun --kind failed --reason \"card service\" --since 2h",
	})
	cmd.Flags().BoolVar(&m.steps, "steps", false, "forget the steps of the messages, too: all are done again")
	return cmd
}

func (a *app) complete() *cobra.Command {
	m := &mending{consent: consent{verb: "complete"}}
	var outcome, reason, result string
	cmd := a.mends(m, &cobra.Command{
		Use:   "complete ID... --outcome succeeded|failed",
		Short: "Say what became of messages whose outcome is unknown",
		Long: `complete decides outcomes that are unknown, once you know whether the effect
happened. Duplicates get that outcome from then on.`,
		Example: "  oncemill complete order-17 --group billing --outcome succeeded",
		PreRunE: func(*cobra.Command, []string) error {
			kind := dedupstore.Kind(outcome)
			if kind != dedupstore.Succeeded && kind != dedupstore.Failed {
				return usagef("--outcome is %q, want succeeded or failed", outcome)
			}
			o := dedupstore.Outcome{Kind: kind, Reason: reason}
			if kind == dedupstore.Failed {
				o.Reason = cmp.Or(reason, explain.Decided)
			}
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
		if err := m.check(string(m.verb), len(args) > 0 || !m.empty()); err != nil {
			return err
		}
		return a.mend(cmd.Context(), m, args)
	}
	m.all(cmd.Flags())
	m.flags(cmd.Flags(), "records")
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
	all := records
	if m.steps {
		if all, err = operate.WithSteps(ctx, store, records); err != nil {
			return err
		}
	}
	messages := explain.MessagesOf(records)
	items := make([]operate.Item, len(all))
	for i := range all {
		items[i] = operate.Item{Record: all[i], Change: m.change}
		if m.steps && messages.HaveStep(all[i].Key) {
			items[i].Change = dedupstore.Forget{}
		}
	}
	counts := map[string]int{}
	for i := range items {
		r := &items[i].Record
		counts[scopeOf(r.Key)+", "+operate.StateOf(r)]++
	}
	if agreed, err := a.agreed(ctx, &m.consent, "record", counts); err != nil || !agreed {
		return err
	}
	audit, done, err := a.auditor(&m.consent)
	if err != nil {
		return err
	}
	return errors.Join(a.changes(ctx, store, m, items, audit), done())
}

// chosen are the records that are meant.
func (a *app) chosen(
	ctx context.Context, store dedupstore.Inspector, m *mending, ids []string,
) ([]dedupstore.Record, error) {
	found := map[dedupstore.Key]dedupstore.Record{}
	if len(ids) == 0 {
		unreadable, err := a.each(ctx, store, m.Filter, func(r *dedupstore.Record) bool {
			if m.takes(r) {
				found[r.Key] = *r
			}
			return true
		})
		a.leftOut(unreadable)
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
				but := ""
				if of.Reason != "" || len(of.States)+len(of.Kinds) > 0 || !of.Since.IsZero() || !of.Before.IsZero() {
					but = ", with what --reason, --state, --kind, --since and --before ask for"
				}
				return nil, fmt.Errorf("message %q has no record in the scopes that were looked at%s", safe(id, 100), but)
			}
			if of.Matches(&records[i]) && m.takes(&records[i]) {
				found[records[i].Key] = records[i]
			}
		}
	}
	return sorted(found), nil
}

func (a *app) changes(
	ctx context.Context, store dedupstore.Inspector, m *mending, items []operate.Item, audit *slog.Logger,
) error {
	progress := a.progress("records")
	defer progress.end()
	changed, refused := 0, 0
	var first error
	do := func(ctx context.Context, item *operate.Item) error {
		return store.Change(ctx, item.Record, item.Change)
	}
	err := operate.Change(ctx, items, m.rate, a.timeout(), do, func(item *operate.Item, err error) {
		r := &item.Record
		action := m.verb
		if _, forgets := item.Change.(dedupstore.Forget); forgets { // the steps of a rerun
			action = "forget"
		}
		line := audit.With("action", action, "key", r.Key.String(), "fence", r.Fence, "state", string(r.State))
		if outcome := operate.Decided(item.Change); outcome != "" {
			line = line.With("outcome", outcome)
		}
		switch {
		case err == nil:
			changed++
			line.Info("changed")
		case operate.Refused(err):
			refused++
			line.Warn("refused", "error", err.Error())
			first = cmp.Or(first, err)
		default:
			line.Error("failed", "error", err.Error())
		}
		progress.add(1, len(items))
	})
	if err != nil {
		return fmt.Errorf("%d of %s changed: %w", changed, plural(len(items), "record"), err)
	}
	fmt.Fprintf(a.log, "%s changed, %d refused\n", plural(changed, "record"), refused)
	if _, reruns := m.change.(dedupstore.Rerun); reruns && changed > 0 {
		fmt.Fprintln(a.log, "They wait for a delivery, and a rerun sends none: say oncemill dlq redrive TOPIC, or "+
			"publish the messages again.")
	}
	if first != nil {
		return fmt.Errorf("%s refused, the first: %w", plural(refused, "record"), first)
	}
	return nil
}
