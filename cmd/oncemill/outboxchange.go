package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/outbox"
)

// A rowChange changes rows of an outbox: by their message IDs, or all that a filter lets through.
type rowChange struct {
	rowFilter
	consent
	header map[string]string // of a replay
}

func (a *app) outboxRequeue() *cobra.Command {
	return a.frees(&rowChange{consent: consent{verb: "requeue"}}, outbox.Inspector.Requeue, &cobra.Command{
		Use:   "requeue [ID...]",
		Short: "Let dead rows be published again, when the reason is mended",
		Long: `requeue makes dead rows pending again: relays publish them at once, with nothing
counted. A message that is dead in several topics is requeued in all of them.`,
		Example: "  oncemill outbox requeue order-17 --why \"topic was made\"\n" +
			"  oncemill outbox requeue --topic orders --dry-run",
	})
}

func (a *app) outboxDiscard() *cobra.Command {
	return a.frees(&rowChange{consent: consent{verb: "discard"}}, outbox.Inspector.Discard, &cobra.Command{
		Use:   "discard [ID...]",
		Short: "Remove dead rows for good: their messages are lost",
		Long: `discard removes dead rows for good. What waited for them goes on. An attempt
that got no answer may have published such a message all the same. A message
that is dead in several topics is discarded in all of them.`,
		Example: "  oncemill outbox discard order-17 --why \"customer is gone\"",
	})
}

// frees is a command that acts on dead rows.
func (a *app) frees(
	c *rowChange, free func(box outbox.Inspector, ctx context.Context, ids ...string) (int, error), cmd *cobra.Command,
) *cobra.Command {
	cmd.GroupID = "mend"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.States = []outbox.State{outbox.Dead}
		ctx, box, rows, err := a.prepare(cmd, c, args)
		if err != nil || len(rows) == 0 {
			return err
		}
		var ids []string
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		slices.Sort(ids)
		batches := slices.Collect(slices.Chunk(slices.Compact(ids), min(c.rate, 100)))
		return a.step(ctx, c, len(rows), func(n int, audit *slog.Logger) (int, bool, error) {
			changed, err := free(box, ctx, batches[n]...)
			if err == nil {
				audit.Info("changed", "rows", changed, "ids", batches[n])
			} else {
				audit.Error("failed", "error", err.Error(), "ids", batches[n])
			}
			return changed, n+1 < len(batches), err
		})
	}
	c.rowFilter.flags(cmd.Flags(), "written")
	c.consent.flags(cmd.Flags(), "rows")
	return cmd
}

func (a *app) outboxReplay() *cobra.Command {
	c := &rowChange{consent: consent{verb: "replay"}}
	cmd := &cobra.Command{
		Use:     "replay [ID...]",
		GroupID: "mend",
		Short:   "Publish rows once more that were published and are still kept",
		Long: `replay publishes rows once more that were published and are still kept: for a
broker that lost what it had acknowledged, or a consumer that is new. Consumers
take the copies for duplicates as long as their windows last.

Times are by the database's clock. A replay that was cut off says with which
--before it goes on.`,
		Example: "  oncemill outbox replay order-17\n" +
			"  oncemill outbox replay --topic orders --since 2h --header tenant=acme",
		RunE: func(cmd *cobra.Command, args []string) error {
			c.States = []outbox.State{outbox.Published}
			ctx, box, rows, err := a.prepare(cmd, c, args)
			if err != nil || len(rows) == 0 {
				return err
			}
			// What was shown, and not again what relays publish meanwhile: that would never end.
			last := slices.MaxFunc(rows, func(a, b outbox.RowInfo) int { return a.Ended.Compare(b.Ended) }).Ended
			r := outbox.ReplayRequest{
				Since: c.Since, Before: last.Add(time.Microsecond), Topic: c.Topic, IDs: args, Header: c.header,
				Limit: min(c.rate, 1000),
			}
			if len(args) == 0 {
				r.IDs = nil
			}
			return a.step(ctx, c, len(rows), func(_ int, audit *slog.Logger) (int, bool, error) {
				changed, err := box.Replay(ctx, r)
				audit = audit.With("topic", r.Topic, "since", r.Since, "before", r.Before, "header", r.Header, "ids",
					r.IDs)
				if err == nil {
					audit.Info("changed", "rows", changed)
				} else {
					audit.Error("failed", "error", err.Error())
					fmt.Fprintf(a.log, "To go on, say the same with --before %s\n",
						r.Before.UTC().Format(time.RFC3339Nano))
				}
				return changed, changed == r.Limit, err
			})
		},
	}
	c.rowFilter.flags(cmd.Flags(), "published")
	cmd.Flags().StringToStringVar(&c.header, "header", nil, "only rows whose message has this header: `NAME=VALUE`")
	c.consent.flags(cmd.Flags(), "rows")
	return cmd
}

// prepare reads the flags, shows the rows that would change, and asks. It returns no rows if nothing may change.
func (a *app) prepare(cmd *cobra.Command, c *rowChange, ids []string) (
	ctx context.Context, box box, rows []outbox.RowInfo, err error,
) {
	ctx = cmd.Context()
	if err := c.read(time.Now()); err != nil {
		return ctx, nil, nil, err
	}
	if err := c.check("outbox "+c.verb, len(ids) > 0 || !c.empty() || len(c.header) > 0); err != nil {
		return ctx, nil, nil, err
	}
	if box, err = a.box(ctx, false); err != nil {
		return ctx, nil, nil, err
	}
	if rows, err = a.chosenRows(ctx, box, c, ids); err != nil {
		return ctx, nil, nil, err
	}
	counts := map[string]int{}
	for _, r := range rows {
		counts[safe(r.Topic, 200)+", "+string(r.State)]++
	}
	if agreed, err := a.agreed(ctx, &c.consent, "row", counts); err != nil || !agreed {
		return ctx, nil, nil, err
	}
	return ctx, box, rows, nil
}

// chosenRows are the rows that are meant.
func (a *app) chosenRows(ctx context.Context, box box, c *rowChange, ids []string) (rows []outbox.RowInfo, err error) {
	missing := map[string]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	f := c.Filter
	if c.verb == "replay" { // whose times are those of publication
		f.Since, f.Before, f.Header = time.Time{}, time.Time{}, len(c.header) > 0
	}
	err = a.eachRow(ctx, box, f, func(r *outbox.RowInfo) bool {
		_, named := missing[r.ID]
		if (named || len(ids) == 0) && (c.verb != "replay" || c.replays(r)) {
			rows = append(rows, *r)
			if named {
				missing[r.ID] = false
			}
		}
		return true
	})
	for _, id := range ids {
		if err == nil && missing[id] {
			return nil, fmt.Errorf("message %q has no row that is %s, or that the filter lets through", safe(id, 100),
				c.States[0])
		}
	}
	if err != nil || c.verb == "replay" || c.empty() {
		return rows, err
	}
	return a.deadRows(ctx, box, rows)
}

// deadRows returns all dead rows of the messages that some rows are of: outboxes change them by message ID, in all
// topics.
func (a *app) deadRows(ctx context.Context, box box, of []outbox.RowInfo) (rows []outbox.RowInfo, err error) {
	ids := map[string]bool{}
	for _, r := range of {
		ids[r.ID] = true
	}
	err = a.eachRow(ctx, box, outbox.Filter{States: []outbox.State{outbox.Dead}}, func(r *outbox.RowInfo) bool {
		if ids[r.ID] {
			rows = append(rows, *r)
		}
		return true
	})
	return rows, err
}

// replays reports whether a replay takes a published row.
func (c *rowChange) replays(r *outbox.RowInfo) bool {
	for name, value := range c.header {
		if r.Header.Get(name) != value {
			return false
		}
	}
	return !r.Ended.Before(c.Since) && (c.Before.IsZero() || r.Ended.Before(c.Before))
}

// step changes rows in steps, as fast as was asked for. Each says how many it changed, and whether there is more.
func (a *app) step(
	ctx context.Context, c *rowChange, rows int, do func(n int, audit *slog.Logger) (changed int, more bool, err error),
) (err error) {
	audit, done, err := a.auditor(&c.consent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	progress := a.progress("rows")
	defer progress.end()
	total := 0
	for n, more := 0, true; more; n++ {
		began := time.Now()
		var changed int
		if changed, more, err = do(n, audit); err != nil {
			return fmt.Errorf("%d of %s changed: %w", total, plural(rows, "row"), err)
		}
		total += changed
		progress.add(changed, rows)
		if more {
			select {
			case <-time.After(time.Until(began.Add(time.Second * time.Duration(changed) / time.Duration(c.rate)))):
			case <-ctx.Done():
				return fmt.Errorf("%d of %s changed", total, plural(rows, "row"))
			}
		}
	}
	progress.end()
	fmt.Fprintf(a.log, "%s changed\n", plural(total, "row"))
	if total < rows {
		return fmt.Errorf("%d of %s not changed: no longer %s", rows-total, plural(rows, "row"), c.States[0])
	}
	return nil
}
