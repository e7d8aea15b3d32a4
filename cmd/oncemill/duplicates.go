package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/producer"
)

// sourcePayload is the source of an ID that is made of a message's payload.
const sourcePayload producer.Source = "payload"

type counting struct {
	id    string
	check bool
}

func (a *app) duplicates() *cobra.Command {
	var u counting
	cmd := &cobra.Command{
		Use:     "duplicates TOPIC",
		GroupID: "look",
		Short:   "Count the duplicates that were published to a topic",
		Long: `Count the duplicates that were published to a Kafka topic, or to a JetStream
stream or subject. It does not matter who published them. It reads the topic
from its beginning to where its end is at the start. It changes nothing: it
commits no offset, and leaves no consumer. It refuses streams with the
retention interest or workqueue.

A message's ID comes from, in this order: oncemill-id, CloudEvents (id and
source), Nats-Msg-Id, Idempotency-Key, Debezium's id, Watermill's UUID. Or say
--id header:NAME, or --id payload, which takes equal payloads for duplicates.

Redeliveries cannot be seen in a topic. Look at the metrics of consumers.

Counts are exact, and spans to 1 %. The ID of each message is written to the
folder for temporary files, and removed at the end.`,
		Example: "  oncemill duplicates orders --kafka 127.0.0.1:9092\n" +
			"  oncemill duplicates orders.new --nats nats://127.0.0.1 --id payload --check",
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.countTopic(cmd.Context(), cmd.Flags(), args[0], u)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&u.id, "id", "", "what identifies a message: header:NAME or payload")
	flags.BoolVar(&u.check, "check", false, "exit with status 3 if there is a duplicate")
	return cmd
}

// extractors are those of --id.
func (u counting) extractors() ([]producer.Extractor, error) {
	name, isHeader := strings.CutPrefix(u.id, "header:")
	switch {
	case u.id == "":
		return producer.DefaultExtractors(), nil
	case u.id == "payload":
		return []producer.Extractor{extractPayload}, nil
	case isHeader && name != "":
		return []producer.Extractor{producer.ExtractHeader(name)}, nil
	default:
		return nil, usagef("--id is %q, want header:NAME or payload", u.id)
	}
}

// extractPayload makes the ID of a payload. An empty one has none: tombstones are no duplicates of one another.
func extractPayload(in producer.Incoming) (producer.Identity, error) {
	if len(in.Payload) == 0 {
		return producer.Identity{}, producer.ErrNoID
	}
	sum := sha256.Sum256(in.Payload)
	return producer.Identity{ID: "sha256:" + hex.EncodeToString(sum[:]), Source: sourcePayload}, nil
}

// identify finds the ID of a message.
func identify(in producer.Incoming, extractors []producer.Extractor) (producer.Identity, error) {
	found, err := producer.Extract(in, extractors...)
	if found.Source == producer.SourceCustom {
		found.Source = sourcePayload
	}
	return found, err
}

func (a *app) countTopic(ctx context.Context, flags *pflag.FlagSet, topic string, u counting) (err error) {
	extractors, err := u.extractors()
	if err != nil {
		return err
	}
	kafka, err := a.onKafka(flags)
	if err != nil {
		return err
	}
	var t *trail
	if kafka {
		t, err = a.kafkaTrail(ctx, topic)
	} else {
		t, err = a.natsTrail(ctx, topic)
	}
	if err != nil {
		return err
	}
	report := &topicReport{Topic: topic, Notes: []string{}, Kinds: []*kindReport{}, Repeated: []*repeatedID{}}
	count, err := newTally(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, count.close()) }()
	progress := a.progress("messages")
	defer progress.end()
	var failed error
	err = t.Each(ctx, deadletters.Reading{Payload: true}, func(l deadletters.Letter) bool {
		progress.add(1, t.size)
		report.message(l.Time)
		switch id, err := identify(t.incoming(&l), extractors); {
		case errors.Is(err, producer.ErrNoID):
			report.Without++
		case err != nil:
			report.Unusable++
			report.Problem = cmp.Or(report.Problem, err.Error())
		default:
			failed = count.add(ctx, id, l.Time)
		}
		return failed == nil
	})
	if err := cmp.Or(failed, err); err != nil {
		return err
	}
	progress.end()
	if err := report.count(ctx, count); err != nil {
		return err
	}
	report.Notes = append(report.Notes, t.notes...)
	return a.showTopic(report, u.check)
}

// A topicReport is what was counted in a topic.
type topicReport struct {
	Topic      string        `json:"topic"`
	Messages   int           `json:"messages"`
	First      time.Time     `json:"first,omitzero"`
	Last       time.Time     `json:"last,omitzero"`
	Without    int           `json:"without_id"`
	Unusable   int           `json:"unusable_id"`
	Problem    string        `json:"unusable_id_example,omitempty"`
	IDs        int           `json:"ids"`
	Duplicates int           `json:"duplicates"`
	P50        float64       `json:"p50_seconds"`
	P99        float64       `json:"p99_seconds"`
	Max        float64       `json:"max_seconds"`
	Kinds      []*kindReport `json:"kinds"`
	Windows    []dedupWindow `json:"windows,omitempty"`
	Repeated   []*repeatedID `json:"most_repeated"`
	Notes      []string      `json:"notes"`

	spans spans
}

// A kindReport counts messages with one kind of ID. Apart is the time from the first copy to a later one.
type kindReport struct {
	Kind       producer.Source `json:"kind"`
	Messages   int             `json:"messages"`
	IDs        int             `json:"ids"`
	Duplicates int             `json:"duplicates"`
	P50        float64         `json:"p50_seconds"`
	P99        float64         `json:"p99_seconds"`
	Max        float64         `json:"max_seconds"`

	spans spans
}

// An dedupWindow is a dedup window, and what it costs at the topic's mean rate of IDs.
type dedupWindow struct {
	Share   float64 `json:"share"` // of the duplicates that it recognises
	Seconds float64 `json:"seconds"`
	Records int     `json:"records"`
	Bytes   int     `json:"redis_bytes"`

	window time.Duration
}

type repeatedID struct {
	ID     string          `json:"id"`
	Kind   producer.Source `json:"kind"`
	Copies int             `json:"copies"`
	First  time.Time       `json:"first"`
	Last   time.Time       `json:"last"`
}

func (r *topicReport) message(at time.Time) {
	r.Messages++
	if r.First.IsZero() || at.Before(r.First) {
		r.First = at.UTC()
	}
	if at.After(r.Last) {
		r.Last = at.UTC()
	}
}

const (
	mostRepeated = 10
	recordBytes  = 257 // of a record in Redis: docs/redis.md
)

// count counts what a tally has kept.
func (r *topicReport) count(ctx context.Context, t *tally) error {
	byKind := make([]kindReport, len(kinds))
	var first sighting
	var id *repeatedID
	err := t.each(ctx, func(s sighting) {
		kind := &byKind[s.kind]
		kind.Messages++
		if id == nil || s.id != first.id {
			r.repeated(id)
			first, id = s, &repeatedID{ID: s.id, Kind: kinds[s.kind], First: time.Unix(0, s.at).UTC()}
			r.IDs++
			kind.IDs++
		} else {
			r.Duplicates++
			kind.Duplicates++
			r.spans.add(time.Duration(s.at - first.at))
			kind.spans.add(time.Duration(s.at - first.at))
		}
		id.Copies++
		id.Last = time.Unix(0, s.at).UTC()
	})
	r.repeated(id)
	for i := range byKind {
		if k := &byKind[i]; k.Messages > 0 {
			k.Kind = kinds[i]
			k.P50, k.P99, k.Max = k.spans.seconds()
			r.Kinds = append(r.Kinds, k)
		}
	}
	r.P50, r.P99, r.Max = r.spans.seconds()
	if r.Duplicates > 0 {
		r.Windows = []dedupWindow{r.window(0.99, r.spans.share(0.99)), r.window(1, r.spans.max)}
		if r.Windows[0].window == r.Windows[1].window {
			r.Windows = r.Windows[1:]
		}
	}
	return err
}

func (s *spans) seconds() (p50, p99, most float64) {
	return s.share(0.5).Seconds(), s.share(0.99).Seconds(), s.max.Seconds()
}

// repeated keeps an ID if it is among those with the most copies.
func (r *topicReport) repeated(id *repeatedID) {
	if id == nil || id.Copies < 2 {
		return
	}
	at, _ := slices.BinarySearchFunc(r.Repeated, id, func(a, b *repeatedID) int {
		return cmp.Or(cmp.Compare(b.Copies, a.Copies), a.First.Compare(b.First))
	})
	if at < mostRepeated {
		r.Repeated = slices.Insert(r.Repeated, at, id)
		r.Repeated = r.Repeated[:min(len(r.Repeated), mostRepeated)]
	}
}

// length is a number of hours or minutes, for people.
func (w *dedupWindow) length() string {
	if w.window%time.Hour == 0 {
		return fmt.Sprintf("%d h", w.window/time.Hour)
	}
	return fmt.Sprintf("%d min", w.window/time.Minute)
}

// window says what a dedup window of at least d costs.
func (r *topicReport) window(share float64, d time.Duration) dedupWindow {
	unit := time.Minute
	if d > 2*time.Hour {
		unit = time.Hour
	}
	w := dedupWindow{Share: share, window: (d/unit + 1) * unit, Records: r.IDs} //nolint:durationcheck // of units
	if all := r.Last.Sub(r.First); all > w.window {
		w.Records = int(float64(r.IDs) * w.window.Seconds() / all.Seconds())
	}
	w.Seconds, w.Bytes = w.window.Seconds(), w.Records*recordBytes
	return w
}

func (a *app) showTopic(r *topicReport, check bool) error {
	if !a.forPeople() {
		if err := items(a, []*topicReport{r}); err != nil {
			return err
		}
	} else {
		a.tellTopic(r)
	}
	if check && r.Duplicates > 0 {
		return errFound
	}
	return nil
}

func (a *app) tellTopic(r *topicReport) {
	fmt.Fprintf(a.out, "%s has %s", safe(r.Topic, 80), plural(r.Messages, "message"))
	if r.Messages > 0 {
		fmt.Fprintf(a.out, ", from %s to %s", r.First.Format(time.RFC3339), r.Last.Format(time.RFC3339))
	}
	fmt.Fprintf(a.out, ".\n%s and %s were published.\n\n", plural(r.IDs, "ID"), plural(r.Duplicates, "duplicate"))
	t := table{{"ID", "MESSAGES", "IDS", "DUPLICATES", "P50", "P99", "MAX"}}
	for _, k := range r.Kinds {
		line := []string{string(k.Kind), fmt.Sprint(k.Messages), fmt.Sprint(k.IDs), fmt.Sprint(k.Duplicates)}
		if k.Duplicates > 0 {
			line = append(line, explain.Span(k.spans.share(0.5)), explain.Span(k.spans.share(0.99)),
				explain.Span(k.spans.max))
		}
		t = append(t, line)
	}
	if r.Without > 0 {
		t = append(t, []string{"none", fmt.Sprint(r.Without)})
	}
	if r.Unusable > 0 {
		t = append(t, []string{"unusable", fmt.Sprint(r.Unusable)})
	}
	a.table(t)
	if r.Problem != "" {
		fmt.Fprintf(a.out, "An ID that cannot be used: %s\n", safe(r.Problem, 200))
	}
	if len(r.Windows) > 0 {
		fmt.Fprintln(a.out)
		t = table{{"DEDUP WINDOW", "RECOGNISES", "RECORDS", "IN REDIS"}}
		for _, w := range r.Windows {
			t = append(t, []string{
				w.length(), fmt.Sprintf("%.0f %%", 100*w.Share), fmt.Sprint(w.Records),
				fmt.Sprintf("%.1f MB", float64(w.Bytes)/1e6),
			})
		}
		a.table(t)
	}
	if len(r.Repeated) > 0 {
		fmt.Fprintln(a.out)
		t = table{{"COPIES", "MOST REPEATED", "ID", "FIRST", "LAST"}}
		for _, id := range r.Repeated {
			t = append(t, []string{
				fmt.Sprint(id.Copies), safe(id.ID, 80), string(id.Kind), id.First.Format(time.RFC3339),
				id.Last.Format(time.RFC3339),
			})
		}
		a.table(t)
	}
	fmt.Fprintln(a.out)
	for _, note := range r.Notes {
		fmt.Fprintln(a.out, safe(note, 300))
	}
	fmt.Fprintln(a.out, "Redeliveries cannot be seen in a topic: look at the metrics of consumers.")
}
