package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/ids"
)

// An explanation is what is known of a message in one scope, for programs.
type explanation struct {
	view
	Headline    string            `json:"headline"`
	Effects     string            `json:"effects,omitempty"`
	Events      []event           `json:"events,omitempty"`
	Next        string            `json:"next"`
	Actions     []string          `json:"actions,omitempty"`
	Steps       []stepView        `json:"steps,omitempty"`
	Link        string            `json:"link,omitempty"`
	IDs         map[string]string `json:"ids,omitempty"`
	Outbox      []rowView         `json:"outbox,omitempty"`
	DeadLetters []letterView      `json:"dead_letters,omitempty"`
}

// A stepView is a step of a message's handler.
type stepView struct {
	Step string `json:"step"`
	view
	Headline string `json:"headline"`
}

type event struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

func (a *app) explain() *cobra.Command {
	var f filter
	var names []string
	var payload bool
	var deadTopic string
	d := &dlq{}
	cmd := &cobra.Command{
		Use:     "explain ID",
		GroupID: "look",
		Short:   "Tell what happened to a message",
		Long: `explain tells what happened to a message: in each scope that knows its ID, how
it stands, how often its effect may have happened, what is known of its
attempts, duplicates and steps, what happens next, and what one can do.

With --group and --handler it reads one record. Without them it looks through
all records, which takes seconds where there are millions; in Redis, it tells
what the usual scopes know at once. If an outbox is named, it also tells what
that knows of the message. With --dead-letters it reads that topic, too, and
shows the message's dead letters. Exit status 4: nothing is known of it.`,
		Example: "  oncemill explain order-17\n" +
			"  oncemill explain order-17 --group billing --handler charge --derive receipt",
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.ID = args[0]
			var dead []letterView
			if deadTopic != "" {
				var err error
				if dead, err = a.lettersOf(cmd, d, deadTopic, f.ID); err != nil {
					return err
				}
			}
			return a.explains(cmd.Context(), f.Filter, names, payload, dead)
		},
	}
	f.scope(cmd.Flags())
	cmd.Flags().StringSliceVar(&names, "derive", nil, "show the IDs that Run.ID derives from these names")
	cmd.Flags().BoolVar(&payload, "show-payload", false, "show the result, too")
	cmd.Flags().StringVar(&deadTopic, "dead-letters", "",
		"the subject or topic of dead letters, with --nats or --kafka")
	d.flags(cmd.Flags())
	return cmd
}

// lettersOf returns the dead letters of a message.
func (a *app) lettersOf(cmd *cobra.Command, d *dlq, topic, id string) (all []letterView, err error) {
	source, err := a.open(cmd.Flags(), d, topic)
	if err != nil {
		return nil, err
	}
	err = a.eachLetter(cmd.Context(), source, d, func(l deadletters.Letter) {
		if l.Original() == id {
			all = append(all, viewOfLetter(&l))
		}
	})
	return all, err
}

func (a *app) explains(
	ctx context.Context, f dedupstore.Filter, names []string, payload bool, dead []letterView,
) error {
	store, err := a.inspector(ctx)
	if err != nil {
		return err
	}
	rows, missing := a.rowsOf(ctx, f.ID) // the records are shown all the same
	shown := map[dedupstore.Key]bool{}
	whole := false // all records were looked through
	othersOf := func(records []dedupstore.Record, i int) []dedupstore.Record {
		if !whole || f.Group != "" && f.Handler != "" { // nobody has looked under other names
			return explain.Others(ctx, store, records[i].Key)
		}
		return records
	}
	tell := func(records []dedupstore.Record) {
		for i := range records {
			if shown[records[i].Key] || explain.IsStepOf(records, records[i].Key) ||
				!whole && ids.IsOfStep(records[i].Key.Handler) { // it is told with its message
				continue
			}
			if len(shown) > 0 {
				fmt.Fprintln(a.out)
			}
			a.tell(&records[i], othersOf(records, i), names, payload)
			shown[records[i].Key] = true
		}
	}
	if a.forPeople() && missing == nil {
		a.tellRows(f.ID, rows)
	}
	if a.forPeople() && (f.Group == "" || f.Handler == "") { // all pages may take seconds
		if first, err := store.List(ctx, f, ""); err == nil && first.Next != "" {
			tell(first.Records)
		}
	}
	records, err := a.find(ctx, store, f)
	if err != nil {
		return err
	}
	whole = true
	if missing == nil && len(rows)+len(dead) == 0 && !slices.ContainsFunc(records, func(r dedupstore.Record) bool {
		return r.State != dedupstore.Absent
	}) {
		missing = errNone
	}
	if a.forPeople() {
		tell(records)
		for i, l := range dead {
			if i == 0 {
				fmt.Fprintf(a.out, "\n%s has dead letters\n", a.paint(safe(f.ID, dedupstore.MaxID), bold))
			}
			fmt.Fprintf(a.out, "  %s of %s, since %s: %s, %q\n", safe(l.ID, 100), safe(l.Handler, 200), moment(l.At),
				safe(l.Outcome, 20), safe(l.Reason, 500))
		}
		return missing
	}
	var all []explanation
	for i := range records {
		if explain.IsStepOf(records, records[i].Key) {
			continue
		}
		x := a.explanation(&records[i], othersOf(records, i), names, payload)
		x.Outbox, x.DeadLetters = viewsOfRows(rows), dead
		all = append(all, x)
	}
	return errors.Join(items(a, all), missing)
}

// find returns the records of a message in all scopes that a filter names. There is one at least: it may be absent.
func (a *app) find(ctx context.Context, store dedupstore.Inspector, f dedupstore.Filter) ([]dedupstore.Record, error) {
	key := dedupstore.Key{Tenant: f.Tenant, Group: f.Group, Handler: f.Handler, ID: f.ID}
	if key.Group != "" && key.Handler != "" {
		if key.Tenant == "" {
			key.Tenant = "default"
		}
		if err := key.Validate(); err != nil {
			return nil, usageError{err}
		}
		return store.Look(ctx, []dedupstore.Key{key})
	}
	found := map[dedupstore.Key]dedupstore.Record{}
	unreadable, err := a.each(ctx, store, f, func(r *dedupstore.Record) bool {
		found[r.Key] = *r
		return true
	})
	if err == nil && len(unreadable) > 0 {
		err = unreadable[0]
	}
	if len(found) == 0 {
		found[key] = dedupstore.Record{Key: key, State: dedupstore.Absent}
	}
	return sorted(found), err
}

// sorted are records, the last claimed first.
func sorted(found map[dedupstore.Key]dedupstore.Record) (records []dedupstore.Record) {
	for _, r := range found {
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b dedupstore.Record) int {
		if c := b.Claimed.Compare(a.Claimed); c != 0 {
			return c
		}
		return strings.Compare(a.Key.String(), b.Key.String())
	})
	return records
}

// tell explains a record to people.
func (a *app) tell(r *dedupstore.Record, others []dedupstore.Record, names []string, payload bool) {
	line := func(format string, args ...any) { fmt.Fprintf(a.out, format+"\n", args...) }
	story := explain.Tell(r, time.Now(), others)
	line("%s in %s", a.paint(safe(r.Key.ID, dedupstore.MaxID), bold), scopeOf(r.Key))
	line("  %s", a.paint(safe(story.Headline, 2000), mood(r)))
	if story.Effects != "" {
		line("  %s", story.Effects)
	}
	for _, e := range story.Events {
		line("    %s  %s", a.paint(e.At.UTC().Format("2006-01-02 15:04:05.000Z"), dim), safe(e.What, 500))
	}
	if r.Duplicates > 0 {
		line("  Duplicates that got the outcome: %d", r.Duplicates)
	}
	for _, s := range story.Steps {
		line("  Step %s: %s", safe(s.Name, dedupstore.MaxScopePart), safe(s.Headline, 2000))
	}
	for _, p := range r.Outcome.Produced {
		line("  Produced: message %s to %s", safe(p.ID, 100), safe(p.Topic, 200))
	}
	for _, name := range names {
		line("  Run.ID(%q): %s", name, derived(r.Key, name))
	}
	if link := a.link(r); link != "" {
		line("  Trace: %s", link)
	}
	if payload && len(r.Outcome.Result) > 0 {
		line("  Result: %q", r.Outcome.Result)
	}
	line("  Next: %s", story.Next)
	for _, action := range story.Actions {
		line("  You can %s: %s.", action.Verb, action.What)
	}
}

func (a *app) explanation(
	r *dedupstore.Record, others []dedupstore.Record, names []string, payload bool,
) explanation {
	story := explain.Tell(r, time.Now(), others)
	x := explanation{
		view: viewOf(r, payload), Headline: story.Headline, Effects: story.Effects, Next: story.Next, Link: a.link(r),
	}
	for _, e := range story.Events {
		x.Events = append(x.Events, event(e))
	}
	for _, action := range story.Actions {
		x.Actions = append(x.Actions, action.Verb)
	}
	for _, s := range story.Steps {
		x.Steps = append(x.Steps, stepView{s.Name, viewOf(s.Record, payload), s.Headline})
	}
	for _, name := range names {
		if x.IDs == nil {
			x.IDs = map[string]string{}
		}
		x.IDs[name] = derived(r.Key, name)
	}
	return x
}

// derived is the ID that a handler derives from a name.
func derived(key dedupstore.Key, name string) string { return oncemill.Run{Key: key}.ID(name) }

// link is where the trace of the last run is, if the settings say where traces are.
func (a *app) link(r *dedupstore.Record) string {
	parts := strings.Split(r.Trace, "-") // a traceparent
	if len(parts) != 4 {
		return ""
	}
	if a.settings.Trace == "" {
		return parts[1]
	}
	return strings.ReplaceAll(a.settings.Trace, "{trace}", parts[1])
}

func scopeOf(key dedupstore.Key) string {
	if key.Group == "" && key.Handler == "" {
		return "no scope that was looked at"
	}
	return safe(key.Tenant+":"+key.Group+":"+key.Handler, 3*dedupstore.MaxScopePart)
}
