package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/headers"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/producer"
)

// A letter is a dead letter: a message as the broker has it.
type letter struct {
	producer.Message // its ID is the dead letter's own
	position         string
	sequence         uint64 // JetStream
	at               time.Time
}

// deadLetters are the dead letters of a topic.
type deadLetters interface {
	// each calls do with each letter that is there now, or that is still to be redriven, until do returns false. It
	// takes none.
	each(ctx context.Context, left bool, do func(letter) bool) error

	// take returns letters that are still to be redriven, n at most. None: there are no more.
	take(ctx context.Context, n int) ([]letter, error)

	// done notes that letters have been redriven.
	done(ctx context.Context, sent []letter) error

	// leave gives back what was taken and is not done.
	leave()

	publisher() (producer.Publisher, error)
}

func (l *letter) get(name string) string { return l.Header.Get(name) }

// hasID reports whether the ID is that of the letter or of its message.
func (l *letter) hasID(id string) bool { return id == l.ID || id == l.get(producer.HeaderOriginalID) }

// A dlq is the flags of the commands of dead letters.
type dlq struct {
	stream, name    string
	reason, handler string
	pattern         string   // of reasons: see operate.Pattern
	key             string   // of order; empty: any
	ids             []string // of the letters or their messages; empty: all
	outcomes        []string
	times           times
	from, to        time.Time
	newest          time.Time // redrive: of the letters that were there when it planned
	until           time.Time // stop reading then; zero: read all
	cut             bool      // it was so
	payload         bool      // show
	tenant, group   string    // redrive
}

func (a *app) deadLetters() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "dlq",
		GroupID: "mend",
		Short:   "Look at dead letters in JetStream or Kafka, and run them again",
		Long: `dlq looks at the dead letters of a topic, and runs their messages again. TOPIC
is the DeadLetterTopic of the consumers: a subject of JetStream with --nats, a
topic of Kafka with --kafka.`,
	}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "Look:"}, &cobra.Group{ID: "mend", Title: "Mend:"})
	cmd.AddCommand(a.deadList(), a.deadShow(), a.redrive())
	return cmd
}

func (d *dlq) flags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&d.stream, "stream", "", "the stream, if its subjects do not lead to it (NATS)")
}

// filter has the flags that say which letters are meant.
func (d *dlq) filter(flags *pflag.FlagSet) {
	flags.StringVar(&d.reason, "reason", "",
		"only letters whose reason contains this text; # stands for what\ndiffers, as dlq ls shows it")
	flags.StringArrayVar(&d.ids, "id", nil, "only letters with this ID, or of the message with it; can be\nrepeated")
	flags.StringVar(&d.key, "key", "", "only letters whose message has this order key")
	flags.StringVar(&d.handler, "handler", "", "only letters of this handler")
	flags.StringSliceVar(&d.outcomes, "outcome", nil, "only these outcomes: failed, unknown, mismatch, rejected")
	d.times.flags(flags, "letters written")
}

// read reads the flags of a filter.
func (d *dlq) read(now time.Time) (err error) {
	known := []string{"failed", "unknown", "mismatch", "rejected"}
	if d.outcomes, err = oneOf("--outcome", d.outcomes, known); err != nil {
		return err
	}
	d.from, d.to, err = d.times.read(now)
	return err
}

func (d *dlq) matches(l *letter) bool {
	full := l.get(producer.HeaderHandler)
	tenant, group, handler, _ := headers.SplitScope(full)
	reason := l.get(producer.HeaderReason)
	return (strings.Contains(reason, d.reason) || strings.Contains(operate.Pattern(reason), d.reason)) &&
		(d.key == "" || cmp.Or(l.get(producer.HeaderKey), l.Key) == d.key) &&
		(d.pattern == "" || operate.Pattern(reason) == d.pattern) &&
		(len(d.ids) == 0 || slices.ContainsFunc(d.ids, l.hasID)) &&
		(d.group == "" || tenant == d.tenant && group == d.group) &&
		(d.handler == "" || full == d.handler || handler == d.handler) &&
		(len(d.outcomes) == 0 || slices.Contains(d.outcomes, l.get(producer.HeaderOutcome))) &&
		!l.at.Before(d.from) && (d.to.IsZero() || l.at.Before(d.to)) && !d.late(l)
}

// late reports whether a letter came after a redrive planned.
func (d *dlq) late(l *letter) bool { return !d.newest.IsZero() && l.at.After(d.newest) }

// open opens the dead letters of a topic.
func (a *app) open(cmd *cobra.Command, d *dlq, topic string) (deadLetters, error) {
	kafka, err := a.onKafka(cmd.Flags())
	switch {
	case err != nil:
		return nil, err
	case kafka && d.stream != "":
		return nil, usagef("--stream is set, and Kafka has no streams")
	case kafka:
		return a.kafkaLetters(d, topic)
	}
	return a.natsLetters(cmd.Context(), d, topic)
}

// A letterGroup is what dead letters have in common.
type letterGroup struct {
	DeadLetters int       `json:"letters"`
	Handler     string    `json:"handler"`
	Topic       string    `json:"topic"`
	Outcome     string    `json:"outcome"`
	Reason      string    `json:"reason"`
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
}

func (a *app) deadList() *cobra.Command {
	d := &dlq{}
	var each, check bool
	var limit int
	cmd := &cobra.Command{
		Use:     "ls TOPIC",
		GroupID: "look",
		Short:   "Count dead letters by reason, handler and topic, or list each",
		Long: `ls counts dead letters by reason, handler and topic. Reasons that differ in
numbers, UUIDs and quoted parts only are one, with # for those.

Letters that were redriven are among them for as long as the stream or topic
keeps them, except in a work queue. What is still to be redriven is what
"dlq redrive --dry-run" shows.`,
		Example: "  oncemill dlq ls dead.billing --since 24h\n" +
			"  oncemill dlq ls dead.billing --reason \"card service\" --each",
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := d.read(time.Now()); err != nil {
				return err
			}
			if limit < 1 {
				return usagef("--limit is %d, want at least 1", limit)
			}
			source, err := a.open(cmd, d, args[0])
			if err != nil {
				return err
			}
			found, more := 0, 0
			if each {
				found, more, err = a.listLetters(cmd.Context(), source, d, limit)
			} else {
				found, more, err = a.groupLetters(cmd.Context(), source, d, limit)
			}
			if err != nil {
				return err
			}
			if more > 0 {
				fmt.Fprintf(a.log, "There are %d more than these; --limit shows more.\n", more)
			}
			if check && found > 0 {
				return errFound
			}
			return nil
		},
	}
	d.flags(cmd.Flags())
	d.filter(cmd.Flags())
	cmd.Flags().BoolVar(&each, "each", false, "list each letter, not groups")
	cmd.Flags().IntVar(&limit, "limit", 100, "list so many at most")
	cmd.Flags().BoolVar(&check, "check", false, "exit with status 3 if there is one")
	return cmd
}

func (a *app) groupLetters(ctx context.Context, source deadLetters, d *dlq, limit int) (found, more int, err error) {
	groups := map[letterGroup]*letterGroup{}
	err = a.eachLetter(ctx, source, d, false, func(l letter) {
		g := letterGroup{
			Handler: l.get(producer.HeaderHandler), Topic: l.get(producer.HeaderTopic),
			Outcome: l.get(producer.HeaderOutcome), Reason: operate.Pattern(l.get(producer.HeaderReason)),
		}
		of := groups[g]
		if of == nil {
			first := g
			of = &first
			of.First, of.Reason = l.at, l.get(producer.HeaderReason)
			groups[g] = of
		}
		if of.Reason != l.get(producer.HeaderReason) {
			of.Reason = g.Reason
		}
		of.DeadLetters++
		of.Last = l.at
		if l.at.Before(of.First) {
			of.First = l.at
		}
	})
	if err != nil {
		return 0, 0, err
	}
	all := slices.SortedFunc(maps.Values(groups), func(x, y *letterGroup) int {
		return cmp.Or(cmp.Compare(y.DeadLetters, x.DeadLetters), strings.Compare(x.Reason, y.Reason),
			strings.Compare(x.Handler, y.Handler), strings.Compare(x.Topic, y.Topic))
	})
	shown := all[:min(limit, len(all))]
	if !a.forPeople() {
		return len(all), len(all) - len(shown), items(a, shown)
	}
	t := table{{"LETTERS", "HANDLER", "TOPIC", "OUTCOME", "FIRST", "LAST", "REASON"}}
	for _, g := range shown {
		t = append(t, []string{
			fmt.Sprint(g.DeadLetters), safe(g.Handler, 60), safe(g.Topic, 60), safe(g.Outcome, 20), moment(g.First),
			moment(g.Last), safe(g.Reason, 80),
		})
	}
	a.table(t)
	return len(all), len(all) - len(shown), nil
}

func moment(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05Z") }

// A letterView is a dead letter for programs.
type letterView struct {
	ID       string          `json:"id"`
	Original string          `json:"original,omitempty"`
	Position string          `json:"position"`
	At       time.Time       `json:"at"`
	Handler  string          `json:"handler"`
	Topic    string          `json:"topic"`
	Outcome  string          `json:"outcome"`
	Reason   string          `json:"reason"`
	Attempts int             `json:"attempts,omitempty"`
	Fence    uint64          `json:"fence,omitempty"`
	Reruns   int             `json:"reruns,omitempty"`
	Key      string          `json:"key,omitempty"`
	Header   producer.Header `json:"header,omitempty"`
	Payload  []byte          `json:"payload,omitempty"`
}

func (l *letter) view() letterView {
	number := func(name string) int {
		n, _ := strconv.Atoi(l.get(name)) // what is none is shown as it is, by dlq show
		return n
	}
	fence, _ := strconv.ParseUint(l.get(producer.HeaderFence), 10, 64)
	return letterView{
		ID: l.ID, Original: l.get(producer.HeaderOriginalID), Position: l.position, At: l.at,
		Handler: l.get(producer.HeaderHandler), Topic: l.get(producer.HeaderTopic),
		Outcome: l.get(producer.HeaderOutcome), Reason: l.get(producer.HeaderReason),
		Attempts: number(producer.HeaderAttempts), Fence: fence, Reruns: number(producer.HeaderReruns),
	}
}

func (a *app) listLetters(ctx context.Context, source deadLetters, d *dlq, limit int) (found, more int, err error) {
	var all []letterView
	err = a.eachLetter(ctx, source, d, false, func(l letter) {
		if found++; found <= limit {
			all = append(all, l.view())
		}
	})
	if err != nil {
		return 0, 0, err
	}
	if !a.forPeople() {
		return found, found - len(all), items(a, all)
	}
	t := table{{"ID", "MESSAGE", "HANDLER", "TOPIC", "OUTCOME", "ATTEMPTS", "RERUNS", "AT", "REASON"}}
	for _, v := range all {
		t = append(t, []string{
			safe(v.ID, 60), safe(v.Original, 60), safe(v.Handler, 60), safe(v.Topic, 60), safe(v.Outcome, 20),
			fmt.Sprint(v.Attempts), fmt.Sprint(v.Reruns), moment(v.At), safe(v.Reason, 60),
		})
	}
	a.table(t)
	return found, found - len(all), nil
}

// eachLetter calls do with the letters that the flags let through.
func (a *app) eachLetter(ctx context.Context, source deadLetters, d *dlq, left bool, do func(letter)) error {
	progress := a.progress("letters")
	defer progress.end()
	return source.each(ctx, left, func(l letter) bool {
		progress.add(1, 0)
		if d.cut = !d.until.IsZero() && time.Now().After(d.until); d.cut {
			return false
		}
		if d.matches(&l) {
			do(l)
		}
		return true
	})
}

func (a *app) deadShow() *cobra.Command {
	d := &dlq{}
	cmd := &cobra.Command{
		Use:     "show TOPIC ID",
		GroupID: "look",
		Short:   "Show the headers of a dead letter",
		Long: `show shows the headers of a dead letter. ID is its own ID, or that of the
message that failed, which may have several dead letters.`,
		Example: "  oncemill dlq show dead.billing order-17 --show-payload",
		Args:    arguments(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			source, err := a.open(cmd, d, args[0])
			if err != nil {
				return err
			}
			var all []letterView
			d.ids = args[1:]
			err = a.eachLetter(cmd.Context(), source, d, false, func(l letter) {
				v := l.view()
				v.Header, v.Key = l.Header, l.Key
				if d.payload {
					v.Payload = l.Payload
				}
				all = append(all, v)
			})
			if err != nil {
				return err
			}
			if len(all) == 0 {
				return fmt.Errorf("%s has no dead letter with the ID %q, and none of a message with it",
					safe(args[0], 100), safe(args[1], 100))
			}
			if !a.forPeople() {
				return items(a, all)
			}
			for _, v := range all {
				a.showLetter(v, d.payload)
			}
			return nil
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVar(&d.payload, "show-payload", false, "show the payload, too")
	return cmd
}

func (a *app) showLetter(v letterView, payload bool) {
	fmt.Fprintf(a.out, "%s at %s, since %s\n", a.paint(safe(v.ID, dedupstore.MaxID), bold), v.Position, moment(v.At))
	if v.Key != "" {
		fmt.Fprintf(a.out, "  key: %s\n", safe(v.Key, 500))
	}
	for _, name := range slices.Sorted(maps.Keys(v.Header)) {
		fmt.Fprintf(a.out, "  %s: %s\n", safe(name, 200), safe(v.Header[name], 2000))
	}
	if payload {
		fmt.Fprintf(a.out, "  payload: %q\n", v.Payload)
	}
}

// errScope says that the handler of a dead letter cannot be told.
var errScope = errors.New("header " + producer.HeaderHandler + " is not tenant/group/handler, with / in names as %2F")

// keyOf is the key of the record of a letter's message.
func (d *dlq) keyOf(l *letter) (key dedupstore.Key, err error) {
	var ok bool
	key.Tenant, key.Group, key.Handler, ok = headers.SplitScope(l.get(producer.HeaderHandler))
	if !ok {
		return key, errScope
	}
	key.ID = l.get(producer.HeaderOriginalID)
	return key, key.Validate()
}
