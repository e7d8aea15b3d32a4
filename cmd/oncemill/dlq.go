package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/headers"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A dlq is the flags of the commands of dead letters.
type dlq struct {
	operate.Letters
	stream, name string
	times        times
	payload      bool // show
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
	cmd.AddCommand(a.deadList(), a.deadShow(), a.redrive(), a.deadDiscard())
	return cmd
}

func (d *dlq) flags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&d.stream, "stream", "", "the stream, if its subjects do not lead to it (NATS)")
}

// filter has the flags that say which letters are meant.
func (d *dlq) filter(flags *pflag.FlagSet) {
	flags.StringVar(&d.Reason, "reason", "",
		"only letters whose reason contains this text; # stands for what\ndiffers, as dlq ls shows it")
	flags.StringArrayVar(&d.IDs, "id", nil, "only letters with this ID, or of the message with it; can be\nrepeated")
	flags.StringVar(&d.Key, "key", "", "only letters whose message has this order key")
	flags.StringVar(&d.Handler, "handler", "", "only letters of this handler")
	flags.StringSliceVar(&d.Outcomes, "outcome", nil, "only these outcomes: failed, unknown, mismatch, rejected")
	d.times.flags(flags, "letters written")
}

// read reads the flags of a filter.
func (d *dlq) read(now time.Time) (err error) {
	known := []string{"failed", "unknown", "mismatch", "rejected"}
	if d.Outcomes, err = oneOf("--outcome", d.Outcomes, known); err != nil {
		return err
	}
	d.From, d.To, err = d.times.read(now)
	return err
}

// open opens the dead letters of a topic. The flags say on which broker.
func (a *app) open(
	flags *pflag.FlagSet, d *dlq, topic string, options ...nats.Option,
) (deadletters.Source, error) {
	kafka, err := a.onKafka(flags)
	switch {
	case err != nil:
		return nil, err
	case kafka && d.stream != "":
		return nil, usagef("--stream is set, and Kafka has no streams")
	case kafka:
		return a.kafkaLetters(d, topic)
	}
	js, err := a.jetStream(append(options, nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())...)
	if err != nil {
		return nil, err
	}
	return natsjs.NewDeadLetters(js, topic, natsjs.DeadLettersConfig{Stream: d.stream, Progress: d.name})
}

func (a *app) kafkaLetters(d *dlq, topic string) (*franz.DeadLetters, error) {
	opts, err := a.kafkaOpts()
	if err != nil {
		return nil, err
	}
	letters, err := franz.NewDeadLetters(topic, franz.DeadLettersConfig{Markers: d.name}, opts...)
	if err != nil {
		return nil, usagef("--kafka: %w", err)
	}
	a.closers = append(a.closers, letters.Close)
	return letters, nil
}

func (a *app) deadList() *cobra.Command {
	d := &dlq{}
	var each, check bool
	var limit int
	cmd := &cobra.Command{
		Use:     "ls TOPIC",
		GroupID: "look",
		Short:   "Count dead letters by reason, or list each",
		Long: `ls counts dead letters by reason, those of the last hour and day apart. Reasons
that differ in numbers, UUIDs and quoted parts only are one, with # for those.

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
			source, err := a.open(cmd.Flags(), d, args[0])
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

func (a *app) groupLetters(
	ctx context.Context, source deadletters.Source, d *dlq, limit int,
) (found, more int, err error) {
	letters := operate.NewFailures(time.Now())
	err = a.eachLetter(ctx, source, d, func(l deadletters.Letter) {
		r := dedupstore.Record{Ended: l.Time}
		r.Key.Tenant, r.Key.Group, r.Key.Handler, _ = headers.SplitScope(l.Get(producer.HeaderHandler))
		r.Outcome.Kind = dedupstore.Kind(l.Get(producer.HeaderOutcome))
		r.Outcome.Reason = l.Get(producer.HeaderReason)
		letters.Add(&r)
	})
	if err != nil {
		return 0, 0, err
	}
	all := letters.Sorted()
	shown := all[:min(limit, len(all))]
	if !a.forPeople() {
		return len(all), len(all) - len(shown), items(a, shown)
	}
	a.table(reasonTable(shown))
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

func viewOfLetter(l *deadletters.Letter) letterView {
	number := func(name string) int {
		n, _ := strconv.Atoi(l.Get(name)) // what is none is shown as it is, by dlq show
		return n
	}
	fence, _ := strconv.ParseUint(l.Get(producer.HeaderFence), 10, 64)
	return letterView{
		ID: l.ID, Original: l.Get(producer.HeaderOriginalID), Position: l.Position, At: l.Time,
		Handler: l.Get(producer.HeaderHandler), Topic: l.Get(producer.HeaderTopic),
		Outcome: l.Get(producer.HeaderOutcome), Reason: l.Get(producer.HeaderReason),
		Attempts: number(producer.HeaderAttempts), Fence: fence, Reruns: number(producer.HeaderReruns),
	}
}

func (a *app) listLetters(
	ctx context.Context, source deadletters.Source, d *dlq, limit int,
) (found, more int, err error) {
	var all []letterView
	err = a.eachLetter(ctx, source, d, func(l deadletters.Letter) {
		if found++; found <= limit {
			all = append(all, viewOfLetter(&l))
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
func (a *app) eachLetter(ctx context.Context, source deadletters.Source, d *dlq, do func(deadletters.Letter)) error {
	progress := a.progress("letters")
	defer progress.end()
	return source.Each(ctx, deadletters.Reading{Payload: d.payload}, func(l deadletters.Letter) bool {
		progress.add(1, 0)
		if d.Matches(&l) {
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
			source, err := a.open(cmd.Flags(), d, args[0])
			if err != nil {
				return err
			}
			var all []letterView
			d.IDs = args[1:]
			err = a.eachLetter(cmd.Context(), source, d, func(l deadletters.Letter) {
				v := viewOfLetter(&l)
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
