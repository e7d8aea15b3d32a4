package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
)

func (a *app) outbox() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "outbox",
		GroupID: "look",
		Short:   "Look at the rows of an outbox, and mend what the broker refused",
		Long: `outbox looks at the rows of the outbox that --outbox names: messages that wait
to be published, that the broker refused for good, and that were published and
are still kept. It requeues and discards dead ones, and replays published ones.`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "Look:"}, &cobra.Group{ID: "mend", Title: "Mend:"})
	cmd.AddCommand(a.outboxList(), a.outboxDead(), a.outboxStats(),
		a.outboxRequeue(), a.outboxDiscard(), a.outboxReplay())
	return cmd
}

// A rowFilter is an outbox.Filter as flags.
type rowFilter struct {
	outbox.Filter
	states []string
	key    string // of order; empty: any
	times  times
}

// flags has the flags of a filter. The times are those when something happened.
func (f *rowFilter) flags(flags *pflag.FlagSet, happened string) {
	flags.SortFlags = false
	flags.StringVar(&f.Topic, "topic", "", "only rows of this topic")
	f.times.flags(flags, "rows "+happened)
}

// read reads the flags. Now is what durations count from.
func (f *rowFilter) read(now time.Time) (err error) {
	known := []outbox.State{outbox.Pending, outbox.Delayed, outbox.Leased, outbox.Dead, outbox.Published}
	if len(f.states) > 0 {
		if f.States, err = oneOf("--state", f.states, known); err != nil {
			return err
		}
	}
	if f.Since, f.Before, err = f.times.read(now); err != nil {
		return err
	}
	if !f.Before.IsZero() && f.Since.After(f.Before) {
		return usagef("--since %s is after --before %s", f.times.since, f.times.before)
	}
	return nil
}

func (f *rowFilter) empty() bool { return f.Topic == "" && f.Since.IsZero() && f.Before.IsZero() }

func (a *app) outboxList() *cobra.Command {
	return a.rowLister(&rowFilter{}, &cobra.Command{
		Use:   "ls",
		Short: "List rows by state, topic, message ID and age",
		Example: "  oncemill outbox ls --state pending,leased --before 5m --check\n" +
			"  oncemill outbox ls --id order-17 --show-header -o json",
	})
}

func (a *app) outboxDead() *cobra.Command {
	return a.rowLister(&rowFilter{Filter: outbox.Filter{States: []outbox.State{outbox.Dead}}}, &cobra.Command{
		Use:     "dead",
		Short:   "List rows that the broker refused for the last time, and why",
		Example: "  oncemill outbox dead --topic orders",
	})
}

func (a *app) rowLister(f *rowFilter, cmd *cobra.Command) *cobra.Command {
	var limit int
	var check bool
	cmd.GroupID = "look"
	cmd.Args = arguments(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.read(time.Now()); err != nil {
			return err
		}
		if limit < 1 {
			return usagef("--limit is %d, want at least 1", limit)
		}
		return a.rowList(cmd.Context(), f, limit, check)
	}
	if f.States == nil {
		cmd.Flags().StringSliceVar(&f.states, "state", nil,
			"only these states: pending, delayed, leased, dead, published")
	}
	f.flags(cmd.Flags(), "written")
	cmd.Flags().StringVar(&f.ID, "id", "", "only rows of this message")
	cmd.Flags().StringVar(&f.key, "key", "", "only rows with this order key, such as a customer's ID")
	cmd.Flags().IntVar(&limit, "limit", 100, "list so many at most")
	cmd.Flags().BoolVar(&check, "check", false, "exit with status 3 if there is one")
	cmd.Flags().BoolVar(&f.Header, "show-header", false, "show headers, too (json and jsonl)")
	return cmd
}

func (a *app) rowList(ctx context.Context, f *rowFilter, limit int, check bool) error {
	box, err := a.box(ctx)
	if err != nil {
		return err
	}
	var rows []outbox.RowInfo
	more := false
	err = a.eachRow(ctx, box, f.Filter, func(r *outbox.RowInfo) bool {
		if f.key != "" && r.Key != f.key {
			return true
		}
		if more = len(rows) == limit; !more {
			rows = append(rows, *r)
		}
		return !more
	})
	if err != nil {
		return err
	}
	if a.forPeople() {
		a.table(tableOfRows(rows, time.Now()))
		if more {
			fmt.Fprintf(a.log, "There are more than %d; --limit shows more.\n", limit)
		}
	} else if err := items(a, viewsOfRows(rows)); err != nil {
		return err
	}
	if check && len(rows) > 0 {
		return errFound
	}
	return nil
}

// eachRow calls do with the rows that a filter lets through, until it returns false.
func (a *app) eachRow(ctx context.Context, box outbox.Inspector, f outbox.Filter, do func(*outbox.RowInfo) bool) error {
	progress := a.progress("rows")
	defer progress.end()
	return operate.EachRow(ctx, box, f, func(rows int) bool {
		progress.add(rows, 0)
		return true
	}, do)
}

func tableOfRows(rows []outbox.RowInfo, now time.Time) table {
	t := table{{"ID", "TOPIC", "STATE", "FAILURES", "UNKNOWNS", "WRITTEN", "SINCE", "ERROR"}}
	for i := range rows {
		r := &rows[i]
		since := ""
		switch at := cmp.Or(r.Ended, r.Due); {
		case at.After(now):
			since = "in " + explain.Span(at.Sub(now))
		case !at.IsZero():
			since = explain.Span(now.Sub(at)) + " ago"
		}
		t = append(t, []string{
			safe(r.ID, 60), safe(r.Topic, 60), string(r.State), fmt.Sprint(r.Failures), fmt.Sprint(r.Unknowns),
			explain.Span(now.Sub(r.Written)) + " ago", since, safe(r.Error, 100),
		})
	}
	return t
}

// A rowView is a row for programs.
type rowView struct {
	ID       string            `json:"id"`
	Topic    string            `json:"topic"`
	Key      string            `json:"key,omitempty"`
	Header   map[string]string `json:"header,omitempty"`
	State    outbox.State      `json:"state"`
	Written  time.Time         `json:"written"`
	Due      time.Time         `json:"due,omitzero"`
	Ended    time.Time         `json:"ended,omitzero"`
	Failures int               `json:"failures"`
	Unknowns int               `json:"unknowns"`
	Replays  int               `json:"replays,omitempty"`
	Error    string            `json:"error,omitempty"`
}

func viewsOfRows(rows []outbox.RowInfo) (views []rowView) {
	for _, r := range rows {
		views = append(views, rowView{
			ID: r.ID, Topic: r.Topic, Key: r.Key, Header: r.Header, State: r.State, Written: r.Written, Due: r.Due,
			Ended: r.Ended, Failures: r.Failures, Unknowns: r.Unknowns, Replays: r.Replays, Error: r.Error,
		})
	}
	return views
}

// rowsOf returns the rows of a message, if an outbox is named.
func (a *app) rowsOf(
	ctx context.Context, open func() (box, error), id string,
) (rows []outbox.RowInfo, err error) {
	if a.settings.Outbox == "" {
		return nil, nil
	}
	box, err := open()
	if err != nil {
		return nil, err
	}
	err = a.eachRow(ctx, box, outbox.Filter{ID: id}, func(r *outbox.RowInfo) bool {
		rows = append(rows, *r)
		return true
	})
	return rows, err
}

// tellRows explains the rows of a message to people, if an outbox is named.
func (a *app) tellRows(id string, rows []outbox.RowInfo) {
	if a.settings.Outbox == "" {
		return
	}
	fmt.Fprintf(a.out, "%s in the outbox\n", a.paint(safe(id, dedupstore.MaxID), bold))
	if len(rows) == 0 {
		fmt.Fprintln(a.out, "  It has no row: it was never written there, or its row was published and removed, or "+
			"discarded.")
	}
	for i := range rows {
		fmt.Fprintf(a.out, "  %s\n", rowStory(&rows[i], time.Now()))
	}
	fmt.Fprintln(a.out)
}

// rowStory says how a row stands.
func rowStory(r *outbox.RowInfo, now time.Time) string {
	ago := func(at time.Time) string { return explain.Span(now.Sub(at)) + " ago" }
	var story string
	switch r.State {
	case outbox.Published:
		story = "It was published " + ago(r.Ended)
	case outbox.Dead:
		story = "It is dead since " + ago(r.Ended) + ": nobody publishes it until it is requeued"
	case outbox.Leased:
		story = "A relay is publishing it"
	case outbox.Delayed:
		story = "It is due in " + explain.Span(r.Due.Sub(now))
	default:
		story = "It is due since " + ago(r.Due) + ", and waits for a relay"
	}
	story += fmt.Sprintf(" (topic %s, written %s", safe(r.Topic, 200), ago(r.Written))
	for _, count := range []struct {
		n    int
		what string
	}{{r.Failures, "refused"}, {r.Unknowns, "without an answer"}, {r.Replays, "replayed"}} {
		if count.n > 0 {
			story += fmt.Sprintf(", %d × %s", count.n, count.what)
		}
	}
	story += ")."
	if r.Error != "" {
		story += fmt.Sprintf(" The last error: %q", safe(r.Error, 500))
	}
	return story
}

func (a *app) outboxStats() *cobra.Command {
	var f rowFilter
	var w watching
	cmd := &cobra.Command{
		Use:     "stats",
		GroupID: "look",
		Short:   "Count rows by topic and state",
		Example: "  oncemill outbox stats --watch",
		Args:    arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.read(time.Now()), w.check()); err != nil {
				return err
			}
			box, err := a.box(cmd.Context())
			if err != nil {
				return err
			}
			return w.again(cmd.Context(), func() error {
				progress := a.progress("rows")
				defer progress.end()
				topics, err := operate.CountRows(cmd.Context(), box, f.Filter, func(rows int) { progress.add(rows, 0) })
				if progress.end(); err != nil {
					return err
				}
				return show(a, w, topics, topicTable)
			})
		},
	}
	f.flags(cmd.Flags(), "written")
	w.flags(cmd.Flags())
	return cmd
}

func topicTable(topics []operate.TopicCount) table {
	t := table{{"TOPIC", "PENDING", "DELAYED", "LEASED", "DEAD", "PUBLISHED", "OLDEST"}}
	for _, s := range topics {
		line := []string{safe(s.Topic, 80)}
		for _, n := range []int{s.Pending, s.Delayed, s.Leased, s.Dead, s.Published} {
			line = append(line, fmt.Sprint(n))
		}
		t = append(t, append(line, explain.Span(s.Oldest)))
	}
	return t
}
