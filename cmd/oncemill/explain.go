package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/producer"
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

// An explaining is what is told of a message, as flags.
type explaining struct {
	derive, follow, all, payload bool
	names                        []string
	dead                         []letterView
	box                          func() (box, error) // opens it once
}

// mostFollowed bounds the messages that a chain leads to.
const mostFollowed = 100

func (a *app) explain() *cobra.Command {
	var f filter
	var x explaining
	var deadTopic string
	d := &dlq{}
	cmd := &cobra.Command{
		Use:     "explain ID | --derive NAMESPACE PART...",
		GroupID: "look",
		Short:   "Tell what happened to a message",
		Long: `explain tells what happened to a message: in each scope that knows its ID, how
it stands, how often its effect may have happened, what is known of its
attempts, duplicates and steps, what happens next, and what one can do.

With --group and --handler it reads one record. Without them it reads one in
each scope that the store remembers, and looks through all records if none has
it, or with --all, which takes seconds where there are millions. If an outbox is
named, it also tells what that knows of the message. With --dead-letters it
reads that topic, too, and shows the message's dead letters. Exit status 4:
nothing is known of it.

With --derive the ID is what producer.DeriveID makes of a namespace and parts.
Then, and with --follow, it goes on with the messages that the handlers have
produced, and those that these have led to.`,
		Example: "  oncemill explain order-17\n" +
			"  oncemill explain order-17 --group billing --handler charge --run-id receipt\n" +
			"  oncemill explain --derive orders customer-7 2026-11-29",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case x.derive && len(args) < 2:
				return usagef("--derive wants a namespace and parts")
			case x.derive:
				x.follow = true
				f.ID = producer.DeriveID(args[0], args[1:]...)
			default:
				if err := arguments(cobra.ExactArgs(1))(cmd, args); err != nil {
					return err
				}
				f.ID = args[0]
			}
			if deadTopic != "" {
				var err error
				if x.dead, err = a.lettersOf(cmd, d, deadTopic, f.ID); err != nil {
					return err
				}
			}
			return a.explains(cmd.Context(), f.Filter, x)
		},
	}
	f.scope(cmd.Flags())
	cmd.Flags().BoolVar(&x.derive, "derive", false, "the arguments are a namespace and parts of which the ID is made")
	cmd.Flags().BoolVar(&x.follow, "follow", false, "go on with the messages that were produced")
	cmd.Flags().BoolVar(&x.all, "all", false, "look through all records, also in scopes that the store has forgotten")
	cmd.Flags().StringSliceVar(&x.names, "run-id", nil, "show the IDs that Run.ID derives from these names")
	cmd.Flags().BoolVar(&x.payload, "show-payload", false, "show the result, too")
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

func (a *app) explains(ctx context.Context, f dedupstore.Filter, x explaining) error {
	store, err := a.inspector(ctx)
	if err != nil {
		return err
	}
	x.box = sync.OnceValues(func() (box, error) { return a.box(ctx) })
	var told []explanation
	var failed error // the records are shown all the same
	known, seen := false, map[string]bool{}
	for ids := []string{f.ID}; len(ids) > 0 && len(seen) < mostFollowed; ids = ids[1:] {
		of := f
		if of.ID = ids[0]; seen[of.ID] {
			continue
		}
		if len(seen) > 0 { // who gets what was produced is another handler
			of.Tenant, of.Group, of.Handler, x.dead, x.all = "", "", "", nil, false
			if a.forPeople() {
				fmt.Fprintln(a.out)
			}
		}
		first := len(seen) == 0
		seen[of.ID] = true
		records, some, err := a.explainOne(ctx, store, of, x, first, &told)
		failed, known = cmp.Or(failed, err), known || some
		for i := range records {
			if done := records[i].Outcome; x.follow && done.Kind == dedupstore.Succeeded { // else it is a dead letter
				for _, p := range done.Produced {
					ids = append(ids, p.ID)
				}
			}
		}
	}
	if !a.forPeople() && (failed == nil || len(told) > 0) {
		failed = cmp.Or(failed, items(a, told))
	}
	if failed == nil && !known {
		failed = errNone
	}
	return failed
}

// explainOne tells of one message, and reports whether anything is known of it. Only the first is looked for in all
// records.
func (a *app) explainOne(
	ctx context.Context, store dedupstore.Inspector, f dedupstore.Filter, x explaining, first bool, told *[]explanation,
) (records []dedupstore.Record, known bool, err error) {
	rows, missing := a.rowsOf(ctx, x.box, f.ID)
	if a.forPeople() && missing == nil {
		a.tellRows(f.ID, rows)
	}
	scopes, whole := 0, false
	if f.Group == "" || f.Handler == "" {
		if records, scopes, err = operate.LookUp(ctx, store, f); err != nil {
			return nil, false, err
		}
	}
	if whole = x.all || len(records) == 0 && first; whole {
		if records, err = a.find(ctx, store, f); err != nil {
			return nil, false, err
		}
	}
	if len(records) == 0 {
		records = []dedupstore.Record{{Key: dedupstore.Key{ID: f.ID}, State: dedupstore.Absent}}
	}
	messages := explain.MessagesOf(records)
	for i := range records {
		r := &records[i]
		known = known || r.State != dedupstore.Absent
		if messages.HaveStep(r.Key) { // it is told with its message
			continue
		}
		others := records
		if f.Group != "" && f.Handler != "" { // nobody has looked under other names
			others = explain.Others(ctx, store, r.Key)
		}
		if !a.forPeople() {
			one := a.explanation(r, others, x.names, x.payload)
			one.Outbox, one.DeadLetters = viewsOfRows(rows), x.dead
			*told = append(*told, one)
			continue
		}
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		a.tell(r, others, x.names, x.payload)
	}
	if a.forPeople() {
		a.tellLetters(f.ID, x.dead)
		if scopes > 0 && !whole {
			fmt.Fprintf(a.log, "Looked in the %s that the store remembers; --all looks through all records.\n",
				plural(scopes, "scope"))
		}
	}
	return records, known || len(rows)+len(x.dead) > 0, missing
}

func (a *app) tellLetters(id string, dead []letterView) {
	for i, l := range dead {
		if i == 0 {
			fmt.Fprintf(a.out, "\n%s has dead letters\n", a.paint(safe(id, dedupstore.MaxID), bold))
		}
		fmt.Fprintf(a.out, "  %s of %s, since %s: %s, %q\n", safe(l.ID, 100), safe(l.Handler, 200), moment(l.At),
			safe(l.Outcome, 20), safe(l.Reason, 500))
	}
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
	slices.SortFunc(records, operate.LastFirst)
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
