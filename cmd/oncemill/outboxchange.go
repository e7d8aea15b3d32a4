package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
)

// A rowChange changes rows of an outbox: by their message IDs, or all that a filter lets through.
type rowChange struct {
	rowFilter
	consent
	header map[string]string // of a replay
}

func (a *app) outboxRequeue() *cobra.Command {
	return a.frees(&rowChange{consent: consent{verb: operate.Requeue}}, &cobra.Command{
		Use:   "requeue [ID...]",
		Short: "Let dead rows be published again, when the reason is mended",
		Long: `requeue makes dead rows pending again: relays publish them at once, with nothing
counted. A message that is dead in several topics is requeued in all of them.`,
		Example: "  oncemill outbox requeue order-17 --why \"topic was made\"\n" +
			"  oncemill outbox requeue --topic orders --dry-run",
	})
}

func (a *app) outboxDiscard() *cobra.Command {
	return a.frees(&rowChange{consent: consent{verb: operate.Discard}}, &cobra.Command{
		Use:   "discard [ID...]",
		Short: "Remove dead rows for good: their messages are lost",
		Long: `discard removes dead rows for good. What waited for them goes on. An attempt
that got no answer may have published such a message all the same. A message
that is dead in several topics is discarded in all of them.`,
		Example: "  oncemill outbox discard order-17 --why \"customer is gone\"",
	})
}

// frees is a command that acts on dead rows.
func (a *app) frees(c *rowChange, cmd *cobra.Command) *cobra.Command {
	cmd.GroupID = "mend"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.States = []outbox.State{outbox.Dead}
		return a.changeRows(cmd.Context(), c, args)
	}
	c.rowFilter.flags(cmd.Flags(), "written")
	c.consent.flags(cmd.Flags(), "rows")
	return cmd
}

func (a *app) outboxReplay() *cobra.Command {
	c := &rowChange{consent: consent{verb: operate.Replay}}
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
			return a.changeRows(cmd.Context(), c, args)
		},
	}
	c.rowFilter.flags(cmd.Flags(), "published")
	cmd.Flags().StringToStringVar(&c.header, "header", nil, "only rows whose message has this header: `NAME=VALUE`")
	c.consent.flags(cmd.Flags(), "rows")
	return cmd
}

// changeRows shows the rows that would change, asks, and changes them.
func (a *app) changeRows(ctx context.Context, c *rowChange, ids []string) (err error) {
	if err := c.read(time.Now()); err != nil {
		return err
	}
	if err := c.check("outbox "+string(c.verb), len(ids) > 0 || !c.empty() || len(c.header) > 0); err != nil {
		return err
	}
	box, err := a.box(ctx)
	if err != nil {
		return err
	}
	rows, err := a.chosenRows(ctx, box, c, ids)
	if err != nil {
		return err
	}
	counts := map[string]int{}
	for _, r := range rows {
		counts[safe(r.Topic, 200)+", "+string(r.State)]++
	}
	if agreed, err := a.agreed(ctx, &c.consent, "row", counts); err != nil || !agreed {
		return err
	}
	audit, done, err := a.auditor(&c.consent)
	if err != nil {
		return err
	}
	progress := a.progress("rows")
	defer progress.end()
	if len(ids) == 0 {
		ids = nil // all that the filter lets through
	}
	total := 0
	change := &operate.RowChange{Box: box, Verb: c.verb, Rows: rows, Rate: c.rate, Replay: outbox.ReplayRequest{
		Since: c.Since, Topic: c.Topic, IDs: ids, Header: c.header,
	}}
	change.Tell = func(ids []string, changed int, err error) {
		line := audit.With("action", c.verb)
		if r := change.Replay; c.verb == operate.Replay {
			line = line.With("topic", r.Topic, "since", r.Since, "before", r.Before, "header", r.Header)
		}
		line = line.With("ids", ids)
		if total += changed; err == nil {
			line.Info("changed", "rows", changed)
		} else {
			line.Error("failed", "error", err.Error())
		}
		progress.add(changed, len(rows))
	}
	err = change.Do(ctx)
	progress.end()
	err = errors.Join(err, done())
	if err != nil && c.verb == operate.Replay {
		fmt.Fprintf(a.log, "To go on, say the same with --before %s\n",
			change.Replay.Before.UTC().Format(time.RFC3339Nano))
	}
	if err != nil {
		return fmt.Errorf("%d of %s changed: %w", total, plural(len(rows), "row"), err)
	}
	fmt.Fprintf(a.log, "%s changed\n", plural(total, "row"))
	if total < len(rows) {
		return fmt.Errorf("%d of %s not changed: no longer %s", len(rows)-total, plural(len(rows), "row"), c.States[0])
	}
	return nil
}

// chosenRows are the rows that are meant.
func (a *app) chosenRows(ctx context.Context, box box, c *rowChange, ids []string) (rows []outbox.RowInfo, err error) {
	missing := map[string]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	f := c.Filter
	if c.verb == operate.Replay { // whose times are those of publication
		f.Since, f.Before, f.Header = time.Time{}, time.Time{}, len(c.header) > 0
	}
	err = a.eachRow(ctx, box, f, func(r *outbox.RowInfo) bool {
		_, named := missing[r.ID]
		if (named || len(ids) == 0) && (c.verb != operate.Replay || c.replays(r)) {
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
	if err != nil || c.verb == operate.Replay || c.empty() {
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
